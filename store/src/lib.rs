//! Images, manifests and generations as files.
