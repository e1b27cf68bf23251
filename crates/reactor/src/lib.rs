//! The real world: a thread per core, io_uring or epoll.
