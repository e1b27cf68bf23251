//! The kernel's requests to the file system of one file, and how each is answered.
//!
//! Invariant: every request that needs an answer is answered, started, or parked.

use std::io;

use smallvec::SmallVec;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    CACHE_VALID_SECONDS, COPIED_WRITE_MAX, CompletionReply, FuseHandler, PAGE_LEN, ParkedRequest,
    PendingReply, SEEK_DATA, SEEK_HOLE, VOLUME_INODE, WRITE_HEADER_LEN,
};
use crate::disk::Disk;
use crate::fuse::MOUNTED_FILE_NAME;
use crate::fuse::wire::{self, init, opcode};
use crate::requests::{EndedRequest, Request, RequestKind, copy_from_parts, truncate_parts};

impl FuseHandler<'_> {
    pub(super) fn dispatch_request(
        &mut self,
        disk: &mut dyn Disk,
        header: &wire::InHeader,
        arguments: &[u8],
    ) -> io::Result<()> {
        let unique = header.unique;
        match header.opcode {
            opcode::INIT => self.handle_init(unique, arguments),
            opcode::LOOKUP => self.handle_lookup(header, arguments),
            opcode::FORGET | opcode::BATCH_FORGET | opcode::DESTROY => Ok(()),
            opcode::GETATTR => self.reply(unique, self.attributes_out(header.node).as_bytes()),
            opcode::SETATTR => self.handle_setattr(header, arguments),
            opcode::STATFS => self.reply(unique, self.statfs_out().as_bytes()),
            opcode::ACCESS | opcode::FSYNCDIR => self.reply(unique, &[]),
            opcode::OPEN => self.handle_open(header, arguments),
            opcode::OPENDIR => self.reply(unique, wire::OpenOut::default().as_bytes()),
            opcode::RELEASEDIR => self.reply(unique, &[]),
            opcode::RELEASE => {
                self.opened = self.opened.saturating_sub(1);
                self.server.statistics.set_clients(self.opened);
                self.reply(unique, &[])
            }
            opcode::READDIR => self.handle_readdir(unique, arguments),
            opcode::READ | opcode::WRITE => self.start_read_or_write(disk, header, arguments),
            opcode::FLUSH if self.changing == 0 && self.flushed == self.changed => self.reply(unique, &[]),
            opcode::FLUSH | opcode::FSYNC => {
                // What ends later may not be in it.
                self.start_request(
                    disk,
                    unique,
                    CompletionReply::Flushed(self.changed),
                    RequestKind::Flush,
                    0,
                    0,
                )
            }
            opcode::FALLOCATE => self.start_fallocate(disk, unique, arguments),
            opcode::LSEEK => self.start_lseek(disk, unique, arguments),
            opcode::INTERRUPT => self.handle_interrupt(arguments),
            _ => self.reply_error(unique, libc::ENOSYS),
        }
    }

    fn handle_init(&mut self, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::InitIn::read_from_prefix(arguments) else {
            return self.reply_error(unique, libc::EPROTO);
        };
        if asked.major != wire::MAJOR || asked.minor < wire::MINOR_MIN {
            self.reply_error(unique, libc::EPROTO)?;
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel speaks FUSE {}.{}; 7.28 is needed", asked.major, asked.minor),
            ));
        }
        let offered = u64::from(asked.flags) | u64::from(asked.flags2) << 32;
        let flags = offered
            & (init::ASYNC_READ
                | init::BIG_WRITES
                | init::ASYNC_DIO
                | init::PARALLEL_DIROPS
                | init::MAX_PAGES
                | init::INIT_EXT
                | init::DIRECT_IO_ALLOW_MMAP
                | init::HAS_RESEND);
        let depth = self.server.settings.depth;
        let out = wire::InitOut {
            major: wire::MAJOR,
            minor: wire::MINOR,
            max_readahead: asked.max_readahead,
            flags: flags as u32,
            max_background: depth,
            congestion_threshold: depth / 4 * 3,
            max_write: self.write_max as u32,
            time_gran: 1,
            max_pages: (self.write_max / PAGE_LEN) as u16,
            flags2: (flags >> 32) as u32,
            ..wire::InitOut::default()
        };
        self.begun = true;
        self.resends = flags & init::HAS_RESEND != 0;
        self.reply(unique, out.as_bytes())
    }

    fn attributes(&self, node: u64) -> wire::Attributes {
        let common = wire::Attributes {
            ino: node,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            blksize: self.geometry.physical.max(PAGE_LEN as u32),
            ..wire::Attributes::default()
        };
        if node == wire::ROOT {
            let search = if self.server.settings.allow_other { 0o555 } else { 0o500 };
            return wire::Attributes { mode: libc::S_IFDIR | search, nlink: 2, ..common };
        }
        let mode = self.server.settings.mode & if self.read_only { 0o444 } else { 0o666 };
        let size = self.geometry.capacity_bytes();
        wire::Attributes { mode: libc::S_IFREG | mode, nlink: 1, size, blocks: size / 512, ..common }
    }

    fn attributes_out(&self, node: u64) -> wire::AttributesOut {
        let attributes = self.attributes(node);
        wire::AttributesOut { valid: CACHE_VALID_SECONDS, valid_nsec: 0, dummy: 0, attributes }
    }

    fn handle_lookup(&mut self, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let name = arguments.split(|&byte| byte == 0).next().unwrap_or_default();
        if header.node != wire::ROOT || name != MOUNTED_FILE_NAME.as_bytes() {
            return self.reply_error(header.unique, libc::ENOENT);
        }
        let out = wire::EntryOut {
            node: VOLUME_INODE,
            entry_valid: CACHE_VALID_SECONDS,
            attr_valid: CACHE_VALID_SECONDS,
            attributes: self.attributes(VOLUME_INODE),
            ..wire::EntryOut::default()
        };
        self.reply(header.unique, out.as_bytes())
    }

    /// The size stays, as that of a block device does when it is opened with O_TRUNC.
    fn handle_setattr(&mut self, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let granted = wire::FATTR_SIZE
            | wire::FATTR_TIMES
            | wire::FATTR_FH
            | wire::FATTR_LOCKOWNER
            | wire::FATTR_KILL_SUIDGID;
        match wire::SetAttributesIn::read_from_prefix(arguments) {
            Ok((asked, _)) if asked.valid & !granted == 0 => {
                self.reply(header.unique, self.attributes_out(header.node).as_bytes())
            }
            _ => self.reply_error(header.unique, libc::EPERM),
        }
    }

    fn statfs_out(&self) -> wire::StatfsOut {
        // A loop device takes its discards' granularity from here.
        let bsize = self.geometry.physical.max(512);
        wire::StatfsOut {
            blocks: self.geometry.capacity_bytes() / u64::from(bsize),
            files: 2,
            bsize,
            frsize: bsize,
            namelen: 255,
            ..wire::StatfsOut::default()
        }
    }

    fn handle_open(&mut self, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let flags = arguments.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        if header.node != VOLUME_INODE {
            return self.reply_error(header.unique, libc::EISDIR);
        }
        if self.read_only && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return self.reply_error(header.unique, libc::EROFS);
        }
        self.opened += 1;
        self.server.statistics.set_clients(self.opened);
        let open_flags = wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES;
        self.reply(header.unique, wire::OpenOut { open_flags, ..wire::OpenOut::default() }.as_bytes())
    }

    fn handle_readdir(&mut self, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::TransferIn::read_from_prefix(arguments) else {
            return self.reply_error(unique, libc::EINVAL);
        };
        let entries: [(u64, &str, u32); 3] =
            [(wire::ROOT, ".", 4), (wire::ROOT, "..", 4), (VOLUME_INODE, MOUNTED_FILE_NAME, 8)];
        let mut out: SmallVec<[u8; 128]> = SmallVec::new();
        for (n, (ino, name, kind)) in entries.into_iter().enumerate().skip(asked.offset.min(3) as usize) {
            let entry = wire::Dirent { ino, offset: n as u64 + 1, namelen: name.len() as u32, kind };
            let len = (size_of::<wire::Dirent>() + name.len()).next_multiple_of(8);
            if out.len() + len > asked.size as usize {
                break;
            }
            out.extend_from_slice(entry.as_bytes());
            out.extend_from_slice(name.as_bytes());
            out.resize(out.len().next_multiple_of(8), 0);
        }
        self.reply(unique, &out)
    }

    /// READ and WRITE: what is behind the end is cut off, as of a block device.
    fn start_read_or_write(
        &mut self,
        disk: &mut dyn Disk,
        header: &wire::InHeader,
        arguments: &[u8],
    ) -> io::Result<()> {
        let unique = header.unique;
        let Ok((asked, _)) = wire::TransferIn::read_from_prefix(arguments) else {
            return self.reply_error(unique, libc::EINVAL);
        };
        if header.node != VOLUME_INODE {
            return self.reply_error(unique, libc::EISDIR);
        }
        let left = self.geometry.capacity_bytes().saturating_sub(asked.offset);
        let len = u64::from(asked.size).min(left) as u32;
        if header.opcode == opcode::READ {
            if len == 0 {
                return self.reply(unique, &[]);
            }
            return self.start_request(
                disk,
                unique,
                CompletionReply::Data,
                RequestKind::Read,
                asked.offset,
                len.into(),
            );
        }
        let came = (header.len as usize).saturating_sub(WRITE_HEADER_LEN);
        if asked.size as usize > self.write_max || came < asked.size as usize {
            return self.reply_error(unique, libc::EINVAL);
        }
        if len == 0 && asked.size > 0 {
            return self.reply_error(unique, libc::ENOSPC);
        }
        self.changing += 1;
        // A direct write is not followed by FSYNC if the file is O_DSYNC: it says so itself.
        let stable = asked.flags as i32 & libc::O_DSYNC != 0;
        self.start_write(disk, unique, asked.offset, len, stable)
    }

    /// Starts a write whose payload is in the buffer, or parks it.
    fn start_write(
        &mut self,
        disk: &mut dyn Disk,
        unique: u64,
        at: u64,
        len: u32,
        stable: bool,
    ) -> io::Result<()> {
        let block = u64::from(self.geometry.logical);
        let is_whole = at.is_multiple_of(block) && u64::from(len).is_multiple_of(block);
        let copied = if is_whole && len as usize > COPIED_WRITE_MAX {
            None
        } else {
            self.requests.alloc_write_memory(disk, at, len.into())
        };
        let data = match (copied, self.buffer.take()) {
            (Some(mut data), Some(buffer)) => {
                let mut from = 0;
                self.requests.for_each_slice(&mut data, at, 0, len.into(), |slice| {
                    copy_from_parts(&buffer, from, slice);
                    from += slice.len();
                });
                self.buffer = Some(buffer);
                data
            }
            (None, Some(mut buffer)) if is_whole => {
                truncate_parts(&mut buffer, len as usize);
                buffer
            }
            (_, buffer) => {
                self.buffer = buffer;
                self.parked = Some(ParkedRequest::Write { unique, at, len, stable });
                return Ok(());
            }
        };
        let token = PendingReply { unique, then: CompletionReply::Written(len) };
        self.start_or_park(disk, Request::write(token, stable, at, len.into(), data));
        Ok(())
    }

    fn start_fallocate(&mut self, disk: &mut dyn Disk, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::FallocateIn::read_from_prefix(arguments) else {
            return self.reply_error(unique, libc::EINVAL);
        };
        let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
        let left = self.geometry.capacity_bytes().saturating_sub(asked.offset);
        let unmap = asked.mode & !keep == libc::FALLOC_FL_PUNCH_HOLE as u32;
        if !unmap && asked.mode & !keep != libc::FALLOC_FL_ZERO_RANGE as u32 {
            // Space that is promised cannot be had of a volume.
            return self.reply_error(unique, libc::EOPNOTSUPP);
        }
        if !unmap && asked.length > left {
            return self.reply_error(unique, libc::ENOSPC);
        }
        let (at, len) = (asked.offset, asked.length.min(left));
        if len == 0 {
            return self.reply(unique, &[]);
        }
        self.changing += 1;
        self.start_request(
            disk,
            unique,
            CompletionReply::Zeroed,
            RequestKind::Zero { unmap, stable: false },
            at,
            len,
        )
    }

    fn start_lseek(&mut self, disk: &mut dyn Disk, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::LseekIn::read_from_prefix(arguments) else {
            return self.reply_error(unique, libc::EINVAL);
        };
        let hole = asked.whence == SEEK_HOLE;
        if !hole && asked.whence != SEEK_DATA {
            return self.reply_error(unique, libc::EINVAL);
        }
        let size = self.geometry.capacity_bytes();
        if asked.offset >= size {
            return self.reply_error(unique, libc::ENXIO);
        }
        self.start_request(
            disk,
            unique,
            CompletionReply::Seek { hole },
            RequestKind::Extents,
            asked.offset,
            size - asked.offset,
        )
    }

    /// Whose user was killed need not wait for its data. Writes go on: nobody knows how far they are.
    fn handle_interrupt(&mut self, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::InterruptIn::read_from_prefix(arguments) else { return Ok(()) };
        let parked = self.parked.take_if(|parked| match parked {
            ParkedRequest::Request(request) => {
                request.token.unique == asked.unique && request.token.then == CompletionReply::Data
            }
            ParkedRequest::Write { .. } => false,
        });
        let found = self
            .requests
            .find_token(|token| token.unique == asked.unique && token.then == CompletionReply::Data);
        match (found, parked) {
            (Some(token), _) => token.then = CompletionReply::Forget,
            (None, Some(_)) => {}
            (None, None) => return Ok(()),
        }
        self.reply_error(asked.unique, libc::EINTR)
    }

    fn start_request(
        &mut self,
        disk: &mut dyn Disk,
        unique: u64,
        then: CompletionReply,
        ask: RequestKind,
        at: u64,
        len: u64,
    ) -> io::Result<()> {
        self.start_or_park(disk, Request::new(PendingReply { unique, then }, ask, at, len));
        Ok(())
    }

    fn start_or_park(&mut self, disk: &mut dyn Disk, request: Request<PendingReply>) {
        if let Err(request) = self.requests.submit_request(disk, request) {
            self.parked = Some(ParkedRequest::Request(request));
        }
    }

    /// Tries again what was parked. True if it is on its way.
    pub(super) fn retry_parked(&mut self, disk: &mut dyn Disk) -> io::Result<bool> {
        match self.parked.take() {
            None => return Ok(false),
            Some(ParkedRequest::Request(request)) => self.start_or_park(disk, request),
            Some(ParkedRequest::Write { unique, at, len, stable }) => {
                self.start_write(disk, unique, at, len, stable)?
            }
        }
        Ok(self.parked.is_none())
    }

    /// Where data or a hole begins, if these extents tell; else from where on to ask.
    fn find_seek_offset(&self, ended: &EndedRequest<PendingReply>, hole: bool) -> Result<u64, u64> {
        let block = u64::from(self.geometry.logical);
        // A hole reads as zeroes, or it is none.
        let is_hole = |mapped: bool| !mapped && self.geometry.dealloc_reads_zero;
        let mut reached = ended.at;
        for extent in &ended.extents {
            if is_hole(extent.mapped) == hole {
                return Ok((extent.span.lba * block).max(ended.at));
            }
            reached = (extent.span.lba.saturating_add(extent.span.blocks)).saturating_mul(block);
        }
        if reached > ended.at { Err(reached) } else { Ok(ended.at) }
    }

    pub(super) fn handle_seek_extents(
        &mut self,
        ended: &EndedRequest<PendingReply>,
        hole: bool,
    ) -> io::Result<()> {
        let unique = ended.token.unique;
        let size = self.geometry.capacity_bytes();
        match self.find_seek_offset(ended, hole) {
            Ok(at) => self.reply(unique, wire::LseekOut { offset: at }.as_bytes()),
            Err(at) if at < size => {
                self.later.push(Request::new(ended.token, RequestKind::Extents, at, size - at));
                Ok(())
            }
            Err(_) if hole => self.reply(unique, wire::LseekOut { offset: size }.as_bytes()),
            Err(_) => self.reply_error(unique, libc::ENXIO),
        }
    }
}
