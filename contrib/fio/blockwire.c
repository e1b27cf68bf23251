/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * An I/O engine for fio over libblockwire: remote volumes without a kernel module or a socket between.
 * Built against the source tree of the fio that shall load it (FIO_IOOPS_VERSION); see docs/fio.md.
 *
 * Each of fio's jobs has an initiator, and so sessions, of its own, on the thread or process that fio gives
 * it. The size is learnt before that, in the process that fio starts with, by an initiator that is gone when
 * jobs begin: no handle outlives a fork.
 */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

#include <blockwire.h>

#if FIO_IOOPS_VERSION < 31
#error "fio 3.33 or newer is needed (FIO_IOOPS_VERSION 31)"
#endif

struct blockwire_options {
    void *pad; /* fio takes an option at offset 0 for none */
    char *url;
    unsigned int io;
    unsigned int poll_us;
};

static struct fio_option options[] = {
    {
        .name = "url",
        .lname = "Blockwire URL",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct blockwire_options, url),
        .help = "The volume: iscsi://HOST/IQN/LUN or nvme+tcp://HOST/NQN/NSID; several paths joined by commas",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "bw_io",
        .lname = "Blockwire world",
        .type = FIO_OPT_STR,
        .off1 = offsetof(struct blockwire_options, io),
        .help = "Which system interface moves the bytes",
        .def = "auto",
        .posval = {
            { .ival = "auto", .oval = BW_IO_AUTO, .help = "io_uring where the system allows it" },
            { .ival = "uring", .oval = BW_IO_URING, .help = "io_uring" },
            { .ival = "epoll", .oval = BW_IO_EPOLL, .help = "epoll" },
        },
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "bw_poll_us",
        .lname = "Blockwire polling",
        .type = FIO_OPT_INT,
        .off1 = offsetof(struct blockwire_options, poll_us),
        .help = "Look at memory for so many microseconds before sleeping",
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    { .name = NULL },
};

/* A job at work. */
struct job {
    bw_initiator *initiator;
    bw_volume *volume;
    /* Submitted since the library was last polled, which is when it leaves. */
    unsigned int unsent;
    /* What has completed and fio has not asked for: a ring of as many as may be in flight. */
    bw_completion *done;
    unsigned int size, first, count;
    /* What fio was last told of. */
    struct io_u **events;
};

static int complain(struct thread_data *td, const char *what, int status)
{
    log_err("fio: blockwire: %s: %s\n", what, bw_error_message());
    td_verror(td, bw_errno(status), what);
    return 1;
}

static int open_volume(struct thread_data *td, bw_initiator **initiator, bw_volume **volume)
{
    struct blockwire_options *said = td->eo;
    bw_options how;
    int status;

    if (!said->url) {
        log_err("fio: blockwire: url= is missing: which volume?\n");
        td_verror(td, EINVAL, "url");
        return 1;
    }
    bw_options_init(&how, sizeof(how));
    how.io = said->io;
    how.poll_us_max = said->poll_us;
    status = bw_initiator_new(&how, initiator);
    if (status < 0)
        return complain(td, "an initiator", status);
    status = bw_open(*initiator, said->url, volume);
    if (status < 0) {
        complain(td, "the volume", status);
        bw_initiator_free(*initiator);
        *initiator = NULL;
        return 1;
    }
    return 0;
}

/* Before jobs begin: one file, as large as the volume. */
static int blockwire_setup(struct thread_data *td)
{
    bw_initiator *initiator = NULL;
    bw_volume *volume = NULL;
    bw_geometry is;
    unsigned int ddir;
    int status, bad = 0;

    if (bw_abi_version() != BW_ABI_VERSION) {
        log_err("fio: blockwire: the library has another interface (%u) than this engine (%u): build it again\n",
                bw_abi_version(), BW_ABI_VERSION);
        td_verror(td, EINVAL, "bw_abi_version");
        return 1;
    }
    if (!td->files_index) {
        add_file(td, "blockwire", 0, 0);
        td->o.nr_files = td->o.nr_files ? td->o.nr_files : 1;
        td->o.open_files++;
    }
    if (open_volume(td, &initiator, &volume))
        return 1;
    status = bw_geometry_of(volume, &is, sizeof(is));
    if (status < 0)
        bad = complain(td, "the volume's size", status);
    for (ddir = 0; !bad && ddir < DDIR_RWDIR_CNT; ddir++) {
        if (td->o.min_bs[ddir] % is.block) {
            log_err("fio: blockwire: blocks of %llu bytes, but the volume's have %u: change bs=\n",
                    (unsigned long long)td->o.min_bs[ddir], is.block);
            td_verror(td, EINVAL, "bs");
            bad = 1;
        }
    }
    if (!bad && (is.flags & BW_GEOMETRY_READ_ONLY) && (td_write(td) || td_trim(td))) {
        log_err("fio: blockwire: the volume is read-only\n");
        td_verror(td, EROFS, "the volume");
        bad = 1;
    }
    if (!bad) {
        td->files[0]->real_file_size = is.bytes;
        /* As fio knows block devices: no file is laid out, and trims are allowed. */
        td->files[0]->filetype = FIO_TYPE_BLOCK;
        fio_file_set_size_known(td->files[0]);
    }
    bw_close(volume);
    bw_initiator_free(initiator);
    return bad;
}

static void blockwire_cleanup(struct thread_data *td)
{
    struct job *job = td->io_ops_data;

    if (!job)
        return;
    bw_close(job->volume);
    bw_initiator_free(job->initiator);
    free(job->done);
    free(job->events);
    free(job);
    td->io_ops_data = NULL;
}

/* On the job's own thread. */
static int blockwire_init(struct thread_data *td)
{
    struct job *job = calloc(1, sizeof(*job));

    if (!job) {
        td_verror(td, ENOMEM, "calloc");
        return 1;
    }
    td->io_ops_data = job;
    job->size = td->o.iodepth ? td->o.iodepth : 1;
    job->done = calloc(job->size, sizeof(*job->done));
    job->events = calloc(job->size, sizeof(*job->events));
    if (!job->done || !job->events) {
        td_verror(td, ENOMEM, "calloc");
        blockwire_cleanup(td);
        return 1;
    }
    if (open_volume(td, &job->initiator, &job->volume)) {
        blockwire_cleanup(td);
        return 1;
    }
    return 0;
}

/* Lets the library work: what was submitted leaves, and what has completed is kept until fio asks. Waits
 * for at most so many milliseconds for more of that. */
static int work(struct thread_data *td, struct job *job, int timeout_ms)
{
    unsigned int at = (job->first + job->count) % job->size;
    unsigned int room = job->size - job->count;
    int came;

    /* Up to the ring's end; the rest comes with the next call. No more is in flight than has room. */
    if (room > job->size - at)
        room = job->size - at;
    if (room == 0)
        return 0;
    job->unsent = 0;
    came = bw_poll(job->initiator, job->done + at, room, timeout_ms);
    if (came < 0) {
        complain(td, "bw_poll", came);
        return came;
    }
    job->count += (unsigned int)came;
    return came;
}

static enum fio_q_status blockwire_queue(struct thread_data *td, struct io_u *io_u)
{
    struct job *job = td->io_ops_data;
    bw_request request;
    int status;

    fio_ro_check(td, io_u);
    memset(&request, 0, sizeof(request));
    request.user = io_u;
    switch (io_u->ddir) {
    case DDIR_READ:
    case DDIR_WRITE:
        request.op = io_u->ddir == DDIR_READ ? BW_READ : BW_WRITE;
        request.flags = io_u->ddir == DDIR_WRITE && td->o.sync_io ? BW_FUA : 0;
        request.data = io_u->xfer_buf;
        break;
    case DDIR_TRIM:
        request.op = BW_DISCARD;
        break;
    case DDIR_SYNC:
    case DDIR_DATASYNC:
        request.op = BW_FLUSH;
        break;
    default:
        io_u->error = EINVAL;
        return FIO_Q_COMPLETED;
    }
    if (request.op != BW_FLUSH) {
        request.len = io_u->xfer_buflen;
        request.offset = io_u->offset;
    }
    status = bw_submit(job->volume, &request, NULL);
    if (status == BW_E_AGAIN)
        return FIO_Q_BUSY;
    if (status < 0) {
        log_err("fio: blockwire: %s\n", bw_error_message());
        io_u->error = (unsigned int)bw_errno(status);
        return FIO_Q_COMPLETED;
    }
    io_u->error = 0;
    /* As many leave together as iodepth_batch= says. */
    if (++job->unsent >= td->o.iodepth_batch && work(td, job, 0) < 0)
        log_err("fio: blockwire: what was submitted does not leave\n");
    return FIO_Q_QUEUED;
}

static int milliseconds(const struct timespec *t)
{
    int64_t ms;

    if (!t)
        return -1;
    ms = (int64_t)t->tv_sec * 1000 + (t->tv_nsec + 999999) / 1000000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

static int blockwire_getevents(struct thread_data *td, unsigned int min, unsigned int max,
                               const struct timespec *t)
{
    struct job *job = td->io_ops_data;
    unsigned int count, at;
    int came = 0;

    /* Even if enough has completed: what was submitted leaves, and what is there is taken. */
    if (work(td, job, 0) < 0)
        return -1;
    while (job->count < min) {
        came = work(td, job, milliseconds(t));
        if (came < 0)
            return -1;
        if (came == 0 && (t || bw_in_flight(job->initiator) == 0))
            break;
    }
    count = job->count < max ? job->count : max;
    for (at = 0; at < count; at++) {
        bw_completion *done = &job->done[job->first];
        struct io_u *io_u = done->user;
        io_u->error = done->status < 0 ? (unsigned int)bw_errno(done->status) : 0;
        /* All of it was moved, or it failed. */
        io_u->resid = 0;
        job->events[at] = io_u;
        job->first = (job->first + 1) % job->size;
        job->count--;
    }
    return (int)count;
}

static struct io_u *blockwire_event(struct thread_data *td, int event)
{
    struct job *job = td->io_ops_data;
    return job->events[event];
}

static int blockwire_open_file(struct thread_data *td, struct fio_file *f)
{
    (void)td, (void)f;
    return 0;
}

static int blockwire_close_file(struct thread_data *td, struct fio_file *f)
{
    (void)td, (void)f;
    return 0;
}

/* Nothing is cached here. */
static int blockwire_invalidate(struct thread_data *td, struct fio_file *f)
{
    (void)td, (void)f;
    return 0;
}

/* fio finds it by this name. */
struct ioengine_ops ioengine = {
    .name = "blockwire",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL,
    .setup = blockwire_setup,
    .init = blockwire_init,
    .cleanup = blockwire_cleanup,
    .queue = blockwire_queue,
    .getevents = blockwire_getevents,
    .event = blockwire_event,
    .open_file = blockwire_open_file,
    .close_file = blockwire_close_file,
    .invalidate = blockwire_invalidate,
    .options = options,
    .option_struct_size = sizeof(struct blockwire_options),
};
