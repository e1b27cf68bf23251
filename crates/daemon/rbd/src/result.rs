//! What results of librbd mean for a volume. Negative results are error numbers of Linux.

use buf::Errno;

/// How an operation on an image has ended.
///
/// What says nothing about the blocks of the operation becomes ENOTCONN, for which hosts hear of a lost path: they
/// try another one, or again. So do EINTR and EAGAIN, for which a file would be asked once more. Only EIO, EILSEQ and EBADMSG are about the blocks.
pub(crate) fn outcome(result: isize) -> Result<usize, Errno> {
    let Err(_) = usize::try_from(result) else { return Ok(result as usize) };
    Err(Errno(match i32::try_from(-result).unwrap_or(libc::ENOTCONN) {
        errno @ (libc::EIO | libc::EILSEQ | libc::EBADMSG) => errno,
        errno @ (libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => errno,
        libc::EOPNOTSUPP => libc::EOPNOTSUPP,
        // The client is blocklisted: another has taken the image over.
        libc::ESHUTDOWN => libc::ESHUTDOWN,
        // Behind the end of an image that was made smaller.
        libc::EINVAL | libc::ERANGE => libc::ENXIO,
        // ETIMEDOUT, EROFS and EBUSY (the lock is lost), ENOENT (the image is deleted), EPERM, EACCES and others.
        _ => libc::ENOTCONN,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_blocks_are_errors_of_blocks() {
        assert_eq!(outcome(4096), Ok(4096));
        assert_eq!(outcome(-5), Err(Errno(libc::EIO)));
        assert_eq!(outcome(-108), Err(Errno(libc::ESHUTDOWN)));
        for lost in [
            libc::ETIMEDOUT,
            libc::EROFS,
            libc::EBUSY,
            libc::ENOENT,
            libc::EPERM,
            libc::ENOTCONN,
            libc::EINTR,
            libc::EAGAIN,
            999,
        ] {
            assert_eq!(outcome(-(lost as isize)), Err(Errno(libc::ENOTCONN)), "{lost}");
        }
        assert_eq!(outcome(-22), Err(Errno(libc::ENXIO)));
        assert_eq!(outcome(isize::MIN + 1), Err(Errno(libc::ENOTCONN)));
    }
}
