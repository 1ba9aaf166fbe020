//! Where copies lie, as people name it.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use store::storage::{Exposure, Private};
use store::{Directory, StorageError};

use crate::folder::Folder;
use crate::target::Target;

/// A shared directory, or a part of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyLocation {
    /// A directory.
    Folder(PathBuf),
    /// The objects below a prefix in a bucket of an object store that speaks S3.
    Objects {
        /// The bucket.
        bucket: String,
        /// Without slashes at its ends; may be empty.
        prefix: String,
    },
}

/// The settings of an object store: variables whose names begin with `AWS_`. They may be secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(Vec<(String, String)>);

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Environment {
    /// The settings among these variables.
    #[must_use]
    pub fn new(variables: impl IntoIterator<Item = (String, String)>) -> Environment {
        Environment(variables.into_iter().filter(|(name, _)| name.starts_with("AWS_")).collect())
    }

    /// This process's own.
    #[must_use]
    pub fn own() -> Environment {
        let text = |text: std::ffi::OsString| text.into_string().ok();
        Environment::new(std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))))
    }

    /// All of them, with their names.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        self.all().find_map(|(known, value)| (known == name).then(|| value.to_owned()))
    }
}

/// A text that names no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// Another kind of place.
    #[error("expected a directory, file:///DIRECTORY or s3://BUCKET/PREFIX, found `{found}`")]
    Scheme {
        /// The text.
        found: String,
    },
    /// No bucket.
    #[error("expected s3://BUCKET or s3://BUCKET/PREFIX, found `{found}`")]
    Bucket {
        /// The text.
        found: String,
    },
    /// A file's URL that is none of this host, or has escapes.
    #[error("expected file:/// and a path without `%`, found `{found}`; a plain path does as well")]
    File {
        /// The text.
        found: String,
    },
}

impl FromStr for CopyLocation {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<CopyLocation, LocationError> {
        let found = || text.to_owned();
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.trim_matches('/').to_owned();
            if bucket.is_empty() || prefix.contains("//") {
                return Err(LocationError::Bucket { found: found() });
            }
            return Ok(CopyLocation::Objects { bucket: bucket.to_owned(), prefix });
        }
        if let Some(path) = text.strip_prefix("file://") {
            let is_path = path.starts_with('/') && !path.contains('%');
            return if is_path {
                Ok(CopyLocation::Folder(path.into()))
            } else {
                Err(LocationError::File { found: found() })
            };
        }
        if text.is_empty() || text.contains("://") {
            return Err(LocationError::Scheme { found: found() });
        }
        Ok(CopyLocation::Folder(text.into()))
    }
}

impl fmt::Display for CopyLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyLocation::Folder(path) => write!(f, "{}", path.display()),
            CopyLocation::Objects { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            CopyLocation::Objects { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

impl CopyLocation {
    /// Whether a text is meant as a place, and no plain path.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        text.contains("://")
    }

    /// Opens it. A directory must be there; a bucket is not looked at yet.
    pub fn open(&self) -> Result<Box<dyn Target>, StorageError> {
        self.open_with(&Environment::own())
    }

    /// Why other users could put copies there, or change them, as far as owners and modes show it; `None` of a bucket, whose rules are its own.
    #[must_use]
    pub fn exposure(&self) -> Option<Exposure> {
        let CopyLocation::Folder(path) = self else { return None };
        match Directory::<Private>::open(path) {
            Err(StorageError::Exposed { exposure, .. }) => Some(exposure),
            // Why it cannot be opened is reported when copies are written.
            Ok(_) | Err(_) => None,
        }
    }

    /// The same with variables that another process has.
    #[cfg_attr(not(feature = "s3"), expect(unused_variables, reason = "object stores alone need it"))]
    pub fn open_with(&self, environment: &Environment) -> Result<Box<dyn Target>, StorageError> {
        match self {
            CopyLocation::Folder(path) => {
                Ok(Box::new(Folder::new(Directory::open_shared(path)?, self.to_string())))
            }
            #[cfg(feature = "s3")]
            CopyLocation::Objects { bucket, prefix } => {
                Ok(Box::new(crate::objects::Objects::s3(bucket, prefix, environment)?))
            }
            #[cfg(not(feature = "s3"))]
            CopyLocation::Objects { .. } => Err(StorageError::Remote {
                operation: store::storage::Operation::List,
                path: self.to_string(),
                problem: "this build has no object stores; build it with the feature `s3`".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let objects = |bucket: &str, prefix: &str| {
            Ok(CopyLocation::Objects { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
        };
        assert_eq!("s3://b".parse(), objects("b", ""));
        assert_eq!("s3://b/".parse(), objects("b", ""));
        assert_eq!("s3://b/some/prefix/".parse(), objects("b", "some/prefix"));
        for folder in ["/shared/copies", "copies", "file:///shared/copies"] {
            let path = folder.strip_prefix("file://").unwrap_or(folder);
            assert_eq!(folder.parse(), Ok(CopyLocation::Folder(path.into())));
        }
        for wrong in
            ["", "s3://", "s3:///prefix", "gs://bucket", "file://host/path", "file:///a%20b", "s3://b/a//b"]
        {
            assert!(wrong.parse::<CopyLocation>().is_err(), "{wrong}");
        }
    }
}
