//! System calls, by seccomp: a list of what the daemon uses in either world. A call that is not on it fails with ENOSYS,
//! as on a kernel that does not have it, so that libraries take their other way.
//!
//! io_uring does by its rings what calls do, past the filter: files and ports stay landlock's there.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Calls that may be made with any arguments.
#[rustfmt::skip]
const CALLS: &[libc::c_long] = &[
    // Files.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_openat, libc::SYS_openat2,
    libc::SYS_close, libc::SYS_close_range, libc::SYS_lseek, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx,
    libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range,
    libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fadvise64, libc::SYS_flock, libc::SYS_fcntl, libc::SYS_dup,
    libc::SYS_dup3, libc::SYS_getdents64, libc::SYS_readlinkat, libc::SYS_faccessat, libc::SYS_faccessat2,
    libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_fchmod,
    libc::SYS_fchmodat, libc::SYS_umask, libc::SYS_copy_file_range, libc::SYS_sendfile, libc::SYS_getcwd,
    libc::SYS_utimensat, libc::SYS_pipe2, libc::SYS_eventfd2, libc::SYS_memfd_create,
    // Memory.
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_mlock, libc::SYS_mlock2,
    libc::SYS_munlock, libc::SYS_msync, libc::SYS_mincore, libc::SYS_membarrier, libc::SYS_get_mempolicy,
    // Threads and this process.
    libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq, libc::SYS_futex, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_gettid, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_tgkill,
    libc::SYS_set_tid_address, libc::SYS_prctl, libc::SYS_sigaltstack, libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending, libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam, libc::SYS_sched_getscheduler, libc::SYS_getcpu, libc::SYS_getpriority,
    libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getgroups,
    libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_prlimit64, libc::SYS_getrusage, libc::SYS_times,
    libc::SYS_sysinfo, libc::SYS_uname, libc::SYS_getrandom,
    // Time.
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
    libc::SYS_gettimeofday, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime,
    // Waiting, in either world.
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll,
    libc::SYS_pselect6, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register,
    // Sockets; `socket` itself is below.
    libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect,
    libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_shutdown,
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
];

/// Calls of the first years that newer processors do not have.
#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[libc::c_long] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_mkdir, libc::SYS_unlink,
    libc::SYS_rename, libc::SYS_renameat, libc::SYS_link, libc::SYS_readlink, libc::SYS_rmdir, libc::SYS_chmod,
    libc::SYS_dup2, libc::SYS_pipe, libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait, libc::SYS_getdents,
    libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_time, libc::SYS_arch_prctl,
    // librados calls these by their first forms.
    libc::SYS_epoll_create, libc::SYS_eventfd,
];
#[cfg(target_arch = "aarch64")]
const OLD_CALLS: &[libc::c_long] = &[libc::SYS_renameat];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OLD_CALLS: &[libc::c_long] = &[];

/// What librbd and librados ask for beside that: threads with a priority, memory by node, watched files.
#[rustfmt::skip]
const CALLS_OF_CEPH: &[libc::c_long] = &[
    libc::SYS_sched_setscheduler, libc::SYS_sched_setparam, libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min, libc::SYS_setpriority, libc::SYS_ioprio_set, libc::SYS_mbind,
    libc::SYS_set_mempolicy, libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    libc::SYS_readahead, libc::SYS_fchown, libc::SYS_fchownat, libc::SYS_splice, libc::SYS_capget,
];

/// Restricts every thread of this process, those that run already too.
///
/// # Errors
/// Why nothing is restricted.
pub(crate) fn restrict_system_calls(has_ceph: bool) -> Result<(), String> {
    let filter = build_filter(has_ceph)?;
    seccompiler::apply_filter_all_threads(&filter)
        .map_err(|why| format!("the kernel does not take the filter: {why}"))
}

fn build_filter(has_ceph: bool) -> Result<BpfProgram, String> {
    let told = |why: seccompiler::BackendError| format!("the filter cannot be made: {why}");
    let arch = TargetArch::try_from(std::env::consts::ARCH)
        .map_err(|_| format!("there is no filter for processors of {}", std::env::consts::ARCH))?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let ceph = if has_ceph { CALLS_OF_CEPH } else { &[] };
    for call in CALLS.iter().chain(OLD_CALLS).chain(ceph) {
        rules.insert(*call, Vec::new());
    }
    rules.extend(conditional_rules().map_err(told)?);
    let denied = SeccompAction::Errno(libc::ENOSYS as u32);
    let filter = SeccompFilter::new(rules, denied, SeccompAction::Allow, arch).map_err(told)?;
    filter.try_into().map_err(told)
}

/// Calls that are allowed with some arguments. Of the rules for one call one must fit.
fn conditional_rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let is = |argument, op, value: i64| SeccompCondition::new(argument, Dword, op, value as u64);
    let one = |condition| SeccompRule::new(vec![condition]);
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let families = families.map(|family| is(0, Eq, family.into()).and_then(one));
    // Threads, and no processes. `clone3` hides its flags from filters; libraries then take `clone`.
    let threads = is(0, MaskedEq(libc::CLONE_THREAD as u64), libc::CLONE_THREAD.into()).and_then(one);
    // No memory that is both written and run.
    let both = u64::from((libc::PROT_WRITE | libc::PROT_EXEC).cast_unsigned());
    let maps = [libc::PROT_NONE, libc::PROT_WRITE, libc::PROT_EXEC]
        .map(|protection| is(2, MaskedEq(both), protection.into()).and_then(one));
    let no_code = is(2, MaskedEq(libc::PROT_EXEC.cast_unsigned().into()), 0).and_then(one);
    // No words put into a terminal in its user's name.
    let terminals = [libc::TIOCSTI, libc::TIOCLINUX].map(|word| is(1, Ne, word.cast_signed()));
    let no_terminals = terminals.into_iter().collect::<Result<_, _>>().and_then(SeccompRule::new);
    Ok(BTreeMap::from([
        (libc::SYS_socket, families.into_iter().collect::<Result<_, _>>()?),
        (libc::SYS_clone, vec![threads?]),
        (libc::SYS_mmap, maps.into_iter().collect::<Result<_, _>>()?),
        (libc::SYS_mprotect, vec![no_code?]),
        (libc::SYS_ioctl, vec![no_terminals?]),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_fits_into_what_the_kernel_takes() {
        for has_ceph in [false, true] {
            let filter = build_filter(has_ceph).unwrap();
            assert!(filter.len() < 4096, "{}", filter.len());
        }
    }

    #[test]
    fn no_call_that_starts_programs_or_looks_into_others_is_on_the_list() {
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_mount,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_kill,
            libc::SYS_setuid,
            libc::SYS_unshare,
            libc::SYS_init_module,
        ] {
            assert!(![CALLS, OLD_CALLS, CALLS_OF_CEPH].iter().any(|list| list.contains(&call)), "{call}");
        }
    }
}
