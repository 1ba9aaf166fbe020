//! An object store as a target.
//!
//! An object appears whole or not at all, so nothing is renamed. Large ones are sent in parts, a few at a time. A process that is killed in the middle leaves parts
//! that no listing shows: stores have a rule by which they remove them after some days.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig, WriteMultipart,
};
use store::StorageError;
use store::packets;
use store::storage::Operation;
use tokio::runtime::{Builder, Runtime};

use crate::location::Environment;
use crate::target::{Entry, Target, Writing};

/// Bytes of a part: more than the 5 MiB that S3 asks for.
const PART_BYTES: u64 = 8 << 20;

/// Parts of one object; S3 has room for 10,000.
const PARTS_MAX: u64 = 9000;

/// Parts of one object that are under way at once: the part in memory, and one more.
const PARTS_UNDER_WAY: usize = 2;

/// Longest time for one request, with all that is sent or received by it: a part at 64 KiB/s.
const REQUEST_MAX: Duration = Duration::from_secs(128);

/// Longest time to be connected.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Attempts after the first one, and the time after which there are no more.
const RETRIES: usize = 6;
const RETRY_MAX: Duration = Duration::from_secs(20);

/// The most characters of a store's answer that are reported.
const PROBLEM_CHARACTERS_MAX: usize = 300;

/// A folder of an object store.
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// The thread that talks.
    runtime: Runtime,
    shown: String,
}

impl Objects {
    /// The objects below `prefix` in any store; `shown`: its name in messages.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, shown: String) -> Result<Objects, StorageError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("stillwire-objects")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| StorageError::Io {
            operation: Operation::List,
            path: shown.clone(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        Ok(Objects { store, prefix: Path::from(prefix), runtime, shown })
    }

    /// The objects below `prefix` in a bucket. Region, endpoint and credentials come from `AWS_*` in the environment.
    pub fn s3(bucket: &str, prefix: &str, environment: &Environment) -> Result<Objects, StorageError> {
        // One that is there already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let shown = format!("s3://{bucket}{}{prefix}", if prefix.is_empty() { "" } else { "/" });
        let variable = |name: &str| environment.get(name);
        let endpoint =
            variable("AWS_ENDPOINT_URL_S3").or(variable("AWS_ENDPOINT_URL")).or(variable("AWS_ENDPOINT"));
        let is_plain = endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let options = ClientOptions::new()
            .with_allow_http(is_plain)
            .with_timeout(REQUEST_MAX)
            .with_connect_timeout(CONNECT_MAX);
        let backoff = BackoffConfig { max_backoff: Duration::from_secs(3), ..BackoffConfig::default() };
        let known = environment
            .all()
            .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)));
        let builder =
            known.fold(AmazonS3Builder::new(), |builder, (key, value)| builder.with_config(key, value));
        let builder = builder.with_bucket_name(bucket).with_client_options(options).with_retry(RetryConfig {
            backoff,
            max_retries: RETRIES,
            retry_timeout: RETRY_MAX,
        });
        let builder = match endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint),
            None => builder,
        };
        let store = builder.build().map_err(|error| StorageError::Remote {
            operation: Operation::List,
            path: shown.clone(),
            problem: problem(&error),
        })?;
        Objects::new(Arc::new(store), prefix, shown)
    }

    fn path(&self, path: &str) -> Path {
        self.prefix.parts().chain(Path::from(path).parts()).collect()
    }

    /// The path below the prefix.
    fn relative(&self, path: &Path) -> Option<String> {
        let parts = path.prefix_match(&self.prefix)?;
        Some(parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"))
    }

    fn failed(&self, operation: Operation, path: &str, error: &object_store::Error) -> StorageError {
        let path = self.shown(path);
        let text = error.to_string();
        match error {
            object_store::Error::NotFound { .. } if !text.contains("NoSuchBucket") => {
                StorageError::NotFound { operation, path }
            }
            _ => StorageError::Remote { operation, path, problem: problem(error) },
        }
    }
}

/// A store's answer, shortened, with a remedy.
fn problem(error: &object_store::Error) -> String {
    let text = error.to_string();
    // For a failed listing the crate reports only the server's answer.
    let refused = [
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidClientTokenId",
        "AccessDenied",
        "403 Forbidden",
    ];
    let is_refused = matches!(
        error,
        object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. }
    ) || refused.iter().any(|word| text.contains(word));
    let hint = if text.contains("NoSuchBucket") {
        "there is no such bucket; make it, or name another one"
    } else if is_refused {
        "the credentials are refused; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to such as may read and write there"
    } else if text.contains("169.254.169.254") {
        "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    } else {
        "check AWS_ENDPOINT_URL, AWS_REGION and the network"
    };
    let mut said: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = said.char_indices().nth(PROBLEM_CHARACTERS_MAX) {
        said.truncate(end);
        said.push_str("...");
    }
    format!("{hint} ({said})")
}

impl Target for Objects {
    fn create(&self, path: &str, bytes_max: u64) -> Result<Box<dyn Writing + '_>, StorageError> {
        let part_bytes = PART_BYTES.max(bytes_max.div_ceil(PARTS_MAX));
        let part_bytes = usize::try_from(part_bytes).expect("a part fits into memory");
        Ok(Box::new(ObjectWriting {
            objects: self,
            path: path.to_owned(),
            part_bytes,
            buffer: Vec::new(),
            upload: None,
        }))
    }

    fn open(&self, path: &str) -> Result<Box<dyn packets::Source + '_>, StorageError> {
        let found = self.runtime.block_on(self.store.head(&self.path(path)));
        let bytes = found.map_err(|error| self.failed(Operation::Read, path, &error))?.size;
        Ok(Box::new(Opened { objects: self, path: path.to_owned(), bytes }))
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, StorageError> {
        let below = self.path(folder);
        let listed = self.runtime.block_on(self.store.list(Some(&below)).try_collect::<Vec<_>>());
        let listed = listed.map_err(|error| self.failed(Operation::List, folder, &error))?;
        let entry = |found: &object_store::ObjectMeta| {
            Some(Entry { path: self.relative(&found.location)?, bytes: found.size })
        };
        let mut entries: Vec<Entry> = listed.iter().filter_map(entry).collect();
        entries.sort();
        Ok(entries)
    }

    fn top(&self) -> Result<Vec<String>, StorageError> {
        let listed = self.runtime.block_on(self.store.list_with_delimiter(Some(&self.prefix)));
        let listed = listed.map_err(|error| self.failed(Operation::List, "", &error))?;
        Ok(listed.common_prefixes.iter().filter_map(|path| self.relative(path)).collect())
    }

    fn remove(&self, path: &str) -> Result<(), StorageError> {
        match self.runtime.block_on(self.store.delete(&self.path(path))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(Operation::RemoveFile, path, &error)),
        }
    }

    fn shown(&self, path: &str) -> String {
        if path.is_empty() { self.shown.clone() } else { format!("{}/{path}", self.shown) }
    }
}

struct ObjectWriting<'a> {
    objects: &'a Objects,
    path: String,
    part_bytes: usize,
    /// The bytes so far, while the file may still be small.
    buffer: Vec<u8>,
    upload: Option<WriteMultipart>,
}

impl Writing for ObjectWriting<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        if self.upload.is_none() && self.buffer.len() + bytes.len() <= self.part_bytes {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        let Objects { store, runtime, .. } = self.objects;
        let failed = |error| self.objects.failed(Operation::Append, &self.path, &error);
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => {
                let begun = runtime.block_on(store.put_multipart(&self.objects.path(&self.path)));
                WriteMultipart::new_with_chunk_size(begun.map_err(failed)?, self.part_bytes)
            }
        };
        let buffered = core::mem::take(&mut self.buffer);
        let sent = runtime.block_on(async {
            for piece in [&buffered[..], bytes] {
                upload.wait_for_capacity(PARTS_UNDER_WAY).await?;
                upload.write(piece);
            }
            Ok(())
        });
        self.upload = Some(upload);
        sent.map_err(|error| self.objects.failed(Operation::Append, &self.path, &error))
    }

    fn finish(mut self: Box<Self>) -> Result<(), StorageError> {
        let Objects { store, runtime, .. } = self.objects;
        let written = match self.upload.take() {
            Some(upload) => runtime.block_on(upload.finish()),
            None => {
                let payload = PutPayload::from(core::mem::take(&mut self.buffer));
                runtime.block_on(store.put(&self.objects.path(&self.path), payload))
            }
        };
        written.map(drop).map_err(|error| self.objects.failed(Operation::Publish, &self.path, &error))
    }
}

impl Drop for ObjectWriting<'_> {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            // The store's own rule removes an upload that cannot be aborted.
            let _ = self.objects.runtime.block_on(upload.abort());
        }
    }
}

/// An object that is read.
struct Opened<'a> {
    objects: &'a Objects,
    path: String,
    bytes: u64,
}

impl packets::Source for Opened<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let wanted_bytes = into.len() as u64;
        if wanted_bytes == 0 {
            return Ok(());
        }
        let short = |found_bytes| StorageError::Short {
            path: self.objects.shown(&self.path),
            offset,
            wanted_bytes,
            found_bytes,
        };
        if offset.saturating_add(wanted_bytes) > self.bytes {
            return Err(short(self.bytes));
        }
        let Objects { store, runtime, .. } = self.objects;
        let range = offset..offset + wanted_bytes;
        let read = runtime.block_on(store.get_range(&self.objects.path(&self.path), range));
        let read = read.map_err(|error| self.objects.failed(Operation::Read, &self.path, &error))?;
        if read.len() as u64 != wanted_bytes {
            return Err(short(offset + read.len() as u64));
        }
        into.copy_from_slice(&read);
        Ok(())
    }
}
