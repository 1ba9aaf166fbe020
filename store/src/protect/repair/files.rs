//! The files of a member that is repaired: damaged pages are written over, and a file that the device does not give is written anew.

use core::ops::Range;

use ckpt_glue::GenerationId;

use super::{Beyond, Others, Rebuilder, Repaired, unless_damaged};
use crate::checksum::checksum;
use crate::error::StoreError;
use crate::image::ImageReader;
use crate::job::{JobDirectory, names};
use crate::limits::PAGE_BYTES;
use crate::protect::error::ProtectError;
use crate::protect::member::{Member, Opened, page_bytes, runs_from, zero_sum};
use crate::protect::node_parity::{self, NodeParity};
use crate::protect::parity_changes::{append_zeros, replace};
use crate::protect::placement::Extent;
use crate::record::{Content, ContentFile};
use crate::storage::Storage;

/// The result of rebuilding a file's damaged pages.
enum Mended {
    /// So many pages were written over; all others are as they were written.
    Pages(u64),
    /// Some could not be computed.
    InPart,
    /// The device does not give some of them. Where they lie nothing is written: the device may refuse that, or lose it again.
    Unreadable,
}

impl<S: Storage> Member<S> {
    pub(super) fn repair_files<O: Others>(
        &mut self,
        content: &Content,
        rebuilder: &mut Rebuilder<'_, O>,
        done: &mut Repaired,
        beyond: &mut Beyond,
    ) -> Result<(), ProtectError> {
        let generation = content.generation;
        let mut opened = unless_damaged(Opened::open(self, generation))?;
        let plain = Opened::new(content.clone());
        let mut sums = vec![zero_sum(); usize::try_from(content.pages()).expect("they fit")];
        for file in &content.files {
            let path = names::in_generation(generation, &file.name);
            let length = unless_damaged(self.directory().storage().length(&path).map_err(Into::into))?;
            let there = length == Some(file.bytes);
            let is_whole = match opened.as_mut().filter(|_| there) {
                Some(opened) => self.repair_pages(&path, file, opened, rebuilder, done, beyond)?,
                // Without checksums of pages those of the image have to do.
                None if there && check_image(self, &path, file).is_ok() => true,
                None => {
                    let rebuilt = self.write_anew(&path, file, |_, page| rebuilder.data(page));
                    let is_rebuilt = beyond.unless_lost(rebuilt, |beyond| beyond.files += 1)?.is_some();
                    if is_rebuilt {
                        check_rebuilt(self, &path, file)?;
                        done.files += 1;
                    }
                    is_rebuilt
                }
            };
            if opened.is_none() && is_whole {
                for run in file.extents.iter().flat_map(runs) {
                    let bytes = plain.read_plain(self.directory(), &run)?;
                    for (page, bytes) in run.zip(bytes.chunks_exact(PAGE_BYTES)) {
                        sums[usize::try_from(page).expect("they fit")] = checksum(bytes);
                    }
                }
            }
        }
        // Checksums of pages that cannot be computed would say nothing.
        if opened.is_none() && beyond.files == 0 {
            self.write_sums(generation, &sums)?;
            done.records += 1;
        }
        Ok(())
    }

    /// Repairs a file that is there, and of whose pages the checksums are known. False: not all of it can be computed.
    fn repair_pages<O: Others>(
        &mut self,
        path: &str,
        file: &ContentFile,
        opened: &mut Opened,
        rebuilder: &mut Rebuilder<'_, O>,
        done: &mut Repaired,
        beyond: &mut Beyond,
    ) -> Result<bool, ProtectError> {
        match self.mend_pages(path, file, opened, rebuilder, beyond)? {
            Mended::Pages(0) => return Ok(true),
            Mended::Pages(pages) => done.pages += pages,
            Mended::InPart => return Ok(false),
            Mended::Unreadable => {
                let mut computed = 0;
                let written = self.write_anew(path, file, |directory, page| {
                    if let Some(bytes) = unless_damaged(opened.read_run(directory, page..page + 1))? {
                        return Ok(bytes);
                    }
                    computed += 1;
                    rebuilder.data(page)
                });
                if beyond.unless_lost(written, |beyond| beyond.files += 1)?.is_none() {
                    return Ok(false);
                }
                done.pages += computed;
            }
        }
        check_rebuilt(self, path, file)?;
        Ok(true)
    }

    /// Writes over the damaged pages of a file, until one is found that the device does not give.
    fn mend_pages<O: Others>(
        &mut self,
        path: &str,
        file: &ContentFile,
        opened: &mut Opened,
        rebuilder: &mut Rebuilder<'_, O>,
        beyond: &mut Beyond,
    ) -> Result<Mended, ProtectError> {
        let (mut mended, mut is_whole) = (0, true);
        for run in file.extents.iter().flat_map(runs) {
            if unless_damaged(opened.read_run(self.directory(), run.clone()))?.is_some() {
                continue;
            }
            for page in run {
                match opened.read_run(self.directory(), page..page + 1) {
                    Ok(_) => continue,
                    Err(error) if error.is_unreadable() => return Ok(Mended::Unreadable),
                    Err(error) => drop(unless_damaged::<()>(Err(error))?),
                }
                let bytes = beyond.unless_lost(rebuilder.data(page), |beyond| beyond.pages += 1)?;
                let Some(bytes) = bytes else {
                    is_whole = false;
                    continue;
                };
                self.mend_page(path, file, page, &bytes)?;
                mended += 1;
            }
        }
        Ok(if is_whole { Mended::Pages(mended) } else { Mended::InPart })
    }

    /// Writes a file anew, front to back, durably in place of the one that may be there; `data` gives each page.
    fn write_anew(
        &mut self,
        path: &str,
        file: &ContentFile,
        mut data: impl FnMut(&mut JobDirectory<S>, u64) -> Result<Vec<u8>, ProtectError>,
    ) -> Result<(), ProtectError> {
        replace(self.directory(), path, |directory, written| {
            let mut end = 0;
            for at in &file.extents {
                // Between sections there is nothing but zeros.
                append_zeros(directory.storage(), written, at.piece.offset - end)?;
                let mut left = at.piece.bytes;
                for run in runs(at) {
                    let mut bytes = Vec::new();
                    for page in run {
                        bytes.extend_from_slice(&data(directory, page)?);
                    }
                    bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    directory.storage().append(written, &bytes)?;
                    left -= bytes.len() as u64;
                }
                end = at.piece.offset + at.piece.bytes;
            }
            append_zeros(directory.storage(), written, file.bytes - end)
        })
    }

    /// Writes a page over damaged bytes.
    fn mend_page(
        &mut self,
        path: &str,
        file: &ContentFile,
        page: u64,
        bytes: &[u8],
    ) -> Result<(), ProtectError> {
        let found = file.extents.iter().find(|at| (at.place..at.place + at.piece.pages()).contains(&page));
        let at = found.expect("the page is in that file");
        let skipped = (page - at.place) * PAGE_BYTES as u64;
        let count =
            usize::try_from((at.piece.bytes - skipped).min(PAGE_BYTES as u64)).expect("at most a page");
        let storage = self.directory().storage();
        let mut written = storage.reopen(path)?;
        storage.overwrite(&mut written, at.piece.offset + skipped, &bytes[..count])?;
        Ok(storage.sync_file(&mut written)?)
    }

    pub(super) fn repair_parity<O: Others>(
        &mut self,
        generation: GenerationId,
        content_pages: u64,
        rebuilder: &mut Rebuilder<'_, O>,
        done: &mut Repaired,
        beyond: &mut Beyond,
    ) -> Result<(), ProtectError> {
        let Some(kept) = unless_damaged(NodeParity::open(self.directory(), generation))? else {
            let pages = self.group().cycles(content_pages) * self.group().parity_pages();
            let written = node_parity::write_whole(self.directory(), generation, pages, |_, page| {
                rebuilder.parity(page).map(Some)
            });
            if beyond.unless_lost(written, |beyond| beyond.files += 1)?.is_some() {
                done.parity_pages += pages;
            }
            return Ok(());
        };
        let mut run = Vec::new();
        for pages in runs_from(0, kept.pages()) {
            run.resize(page_bytes(pages.end - pages.start), 0);
            if unless_damaged(kept.read(self.directory(), pages.start, &mut run))?.is_some() {
                continue;
            }
            for page in pages {
                match kept.page(self.directory(), page) {
                    Ok(_) => continue,
                    Err(error) if error.is_unreadable() => {
                        return self.write_parity_anew(generation, &kept, rebuilder, done, beyond);
                    }
                    Err(error) => drop(unless_damaged::<()>(Err(error))?),
                }
                let bytes = rebuilder.parity(page);
                let Some(bytes) = beyond.unless_lost(bytes, |beyond| beyond.pages += 1)? else { continue };
                kept.repair_page(self.directory(), page, &bytes)?;
                done.parity_pages += 1;
            }
        }
        Ok(())
    }

    /// The device does not give some pages of the files in which the parity lies: it gets a file of its own.
    fn write_parity_anew<O: Others>(
        &mut self,
        generation: GenerationId,
        kept: &NodeParity,
        rebuilder: &mut Rebuilder<'_, O>,
        done: &mut Repaired,
        beyond: &mut Beyond,
    ) -> Result<(), ProtectError> {
        let mut computed = 0;
        let written =
            node_parity::write_whole(self.directory(), generation, kept.pages(), |directory, page| {
                if let Some(page) = unless_damaged(kept.page(directory, page))? {
                    return Ok(page);
                }
                computed += 1;
                rebuilder.parity(page).map(Some)
            });
        if beyond.unless_lost(written, |beyond| beyond.files += 1)?.is_some() {
            done.parity_pages += computed;
        }
        Ok(())
    }
}

/// The pages of an extent, as many at once as are read and written at once.
fn runs(at: &Extent) -> impl Iterator<Item = Range<u64>> + use<> {
    runs_from(at.place, at.place + at.piece.pages())
}

fn check_image<S: Storage>(member: &mut Member<S>, path: &str, file: &ContentFile) -> Result<(), StoreError> {
    let storage = member.directory().storage();
    let image = ImageReader::open(storage, path)?;
    image.expect_digest(file.digest)?;
    image.verify(storage)
}

fn check_rebuilt<S: Storage>(
    member: &mut Member<S>,
    path: &str,
    file: &ContentFile,
) -> Result<(), ProtectError> {
    let checked = check_image(member, path, file);
    checked.map_err(|error| ProtectError::Rebuilt { path: path.to_owned(), error: Box::new(error) })
}
