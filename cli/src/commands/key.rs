//! The key of encrypted files, deltas and copies of generations, and of signed copies.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use copies::CopyKey;
use launcher::Encryption;
use launcher::error::LauncherError;
use launcher::secrets::KEY_VARIABLE;
use store::JobFile;
use store::packets::{Key, Sealing};

use super::run::setting;
use crate::error::CliError;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KeyArgument {
    /// File with the encryption key: 64 hexadecimal digits, as `openssl rand -hex 32` prints them [default: the value of STILLWIRE_KEY, if it is set]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl KeyArgument {
    pub(crate) fn of(key_file: Option<PathBuf>) -> KeyArgument {
        KeyArgument { key_file }
    }

    /// The path of the file, for a process in another folder.
    pub(super) fn absolute(&self) -> Result<Option<PathBuf>, CliError> {
        Ok(self.key_file.as_ref().map(std::path::absolute).transpose()?)
    }

    /// Whether a file is named: an option that must not be ignored silently.
    pub(super) fn is_named(&self) -> bool {
        self.key_file.is_some()
    }

    pub(crate) fn key(&self) -> Result<Option<Key>, CliError> {
        match &self.key_file {
            Some(path) => read(path).map(Some),
            None => match std::env::var(KEY_VARIABLE) {
                Ok(text) if !text.is_empty() => {
                    let place = KEY_VARIABLE.to_owned();
                    parse(text.trim()).map(Some).ok_or(CliError::NoKey { place })
                }
                _ => Ok(None),
            },
        }
    }

    /// For a job whose images are to be encrypted.
    pub(crate) fn encryption(&self) -> Result<Encryption, CliError> {
        let key = self.key()?.ok_or(CliError::EncryptWithNothing)?;
        Ok(Encryption { name: key_name(&key), key: Some(key) })
    }

    /// The same for an existing job, from its job file. `needs_key`: it is going to run.
    pub(crate) fn encryption_as_before(
        &self,
        file: &JobFile,
        needs_key: bool,
    ) -> Result<Option<Encryption>, CliError> {
        let Some(name) = file.settings.get(setting::ENCRYPT) else { return Ok(None) };
        let key = if needs_key { self.key()? } else { None };
        match &key {
            None if needs_key => Err(CliError::NoImageKey { name: name.clone() }),
            Some(key) if key_name(key) != *name => {
                Err(CliError::OtherImageKey { name: name.clone(), found: key_name(key) })
            }
            _ => Ok(Some(Encryption { name: name.clone(), key })),
        }
    }

    /// With a salt of its own.
    pub(super) fn sealing(&self) -> Result<Option<Sealing>, CliError> {
        let Some(key) = self.key()? else { return Ok(None) };
        Ok(Some(Sealing::new(key, salt()?)))
    }
}

/// Refuses a file that others can read. The answer is about the open file; a pipe, such as of `<(command)`, has no name for others.
fn check(path: &Path, found: &Metadata) -> Result<(), CliError> {
    let mode = found.mode() & 0o7777;
    if found.is_file() && mode & 0o077 != 0 {
        return Err(CliError::KeyExposed { path: path.to_owned(), owner: found.uid(), mode });
    }
    Ok(())
}

/// A key for copies that may be read by everybody.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SignArgument {
    /// Sign copies with the key in FILE, and accept only copies that are signed with it. Nobody else can change such a copy unnoticed; everybody can read it.
    ///
    /// FILE is like that of --key-file. Copies are signed instead of encrypted then; images may still be encrypted (--encrypt).
    #[arg(long = "sign", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl SignArgument {
    pub(crate) fn of(file: Option<PathBuf>) -> SignArgument {
        SignArgument { file }
    }

    /// The path of the file, for a process in another folder.
    pub(super) fn absolute(&self) -> Result<Option<PathBuf>, CliError> {
        Ok(self.file.as_ref().map(std::path::absolute).transpose()?)
    }

    pub(crate) fn is_named(&self) -> bool {
        self.file.is_some()
    }

    /// The key of copies: this one, or else that of encrypted files.
    pub(crate) fn copy_key(&self, key: &KeyArgument) -> Result<Option<CopyKey>, CliError> {
        match &self.file {
            Some(path) => Ok(Some(CopyKey::signing(read(path)?))),
            None => Ok(key.key()?.map(CopyKey::encrypting)),
        }
    }
}

fn read(path: &Path) -> Result<Key, CliError> {
    let expected = "64 hexadecimal digits";
    let failed = |error| LauncherError::File { path: path.to_owned(), error, expected };
    let mut file = File::open(path).map_err(failed)?;
    check(path, &file.metadata().map_err(failed)?)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    let place = path.display().to_string();
    parse(String::from_utf8_lossy(&bytes).trim()).ok_or(CliError::NoKey { place })
}

/// By which people and job files name a key.
pub(super) fn key_name(key: &Key) -> String {
    format!("{:016x}", key.id())
}

pub(super) fn salt() -> Result<[u8; 24], CliError> {
    Ok(client::launch::salt().ok_or(LauncherError::NoRandomness)?)
}

fn parse(text: &str) -> Option<Key> {
    let mut key = [0; 32];
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let (pairs, rest) = digits.as_deref()?.as_chunks::<2>();
    if pairs.len() != key.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in key.iter_mut().zip(pairs) {
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(Key(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_and_nothing_else() {
        let text = "00ff".repeat(16);
        assert_eq!(parse(&text), Some(Key(core::array::from_fn(|at| if at % 2 == 0 { 0 } else { 255 }))));
        for wrong in
            ["", "00", &text[1..], &format!("{text}0"), &format!("{text}00"), &text.replace('f', "g")]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
