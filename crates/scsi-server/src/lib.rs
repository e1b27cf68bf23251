//! A SCSI device server on a volume.
