/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libblockwire: volumes of other machines over iSCSI and NVMe/TCP, without a kernel module, a daemon or root.
 *
 *     bw_initiator *initiator;
 *     bw_volume *disk;
 *     if (bw_initiator_new(NULL, &initiator) < 0 ||
 *         bw_open(initiator, "iscsi://127.0.0.1/iqn.2026-11.io.blockwire:demo/0", &disk) < 0)
 *         errx(1, "%s", bw_error_message());
 *
 * Threads: an initiator and its volumes belong to the thread that made the initiator; a call by another
 * gives BW_E_THREAD and does nothing. A thread may have several initiators, a process as many threads as
 * it likes. Nothing is shared between them, no thread is started, no signal is used. After fork() a child
 * leaves its parent's handles alone.
 *
 * Units: offsets, lengths and sizes are in bytes. Offsets and lengths of I/O are multiples of the volume's
 * block size. Times are in milliseconds unless their name says otherwise.
 *
 * Results: calls that return int give BW_OK (0) or a count on success, a BW_E_ code (below zero) on
 * failure; bw_error_message() then says what happened and what to do.
 *
 * Memory: data moves between the socket and the caller's own buffers. A buffer belongs to the library from
 * the submission to the completion: neither written nor, if it is read into, looked at meanwhile.
 * It needs no alignment.
 *
 * Pointers are checked for NULL only. A handle that was closed must not be used again. A defect of the
 * library (a failed assertion) ends the process, because memory that was lent must not go back unsettled.
 */
#ifndef BLOCKWIRE_H
#define BLOCKWIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. What is here keeps its meaning and its layout while the number stays. */
#define BW_ABI_VERSION 1

/* The version of the library that was loaded: to be compared with BW_ABI_VERSION. */
uint32_t bw_abi_version(void);

/* The version of the library as text, for people. Static. */
const char *bw_version(void);

/* --- Results ------------------------------------------------------------------------------------------ */

#define BW_OK 0
#define BW_E_AGAIN (-1)        /* as many operations are in work as can be: poll, then submit again */
#define BW_E_USAGE (-2)        /* what was asked makes no sense: a URL, an offset, a length, a NULL */
#define BW_E_UNREACHABLE (-3)  /* nobody answered */
#define BW_E_UNPROVEN (-4)     /* our secret was not believed, or the target's not by us, or it closed amid that */
#define BW_E_NOT_FOUND (-5)    /* there is no such target, logical unit or namespace */
#define BW_E_TIMED_OUT (-6)    /* no answer in time, or no path served in time */
#define BW_E_FAILED (-7)       /* the target, or this system, said no */
#define BW_E_MEDIUM (-8)       /* a block cannot be read or written; which: bw_completion.block */
#define BW_E_NO_SPACE (-9)     /* the target has no space left */
#define BW_E_READ_ONLY (-10)   /* the volume is read-only for us */
#define BW_E_RESERVED (-11)    /* another host's reservation forbids it */
#define BW_E_UNSUPPORTED (-12) /* the target cannot do it */
#define BW_E_ABORTED (-13)     /* it was cancelled, or ended by a reset */
#define BW_E_LOST (-14)        /* a flush failed: what was written before may be lost */
#define BW_E_THREAD (-15)      /* the handle belongs to another thread */

/* What the last call that failed on this thread had to say, with the next step where there is one. Never a
 * secret. "" if none has failed. It stays until the next call that fails on this thread. */
const char *bw_error_message(void);

/* What a code means, in a few words. Static; never NULL. */
const char *bw_strerror(int status);

/* The errno that fits a code best, above zero; 0 for what is no failure. */
int bw_errno(int status);

/* --- Initiators --------------------------------------------------------------------------------------- */

/* Volumes of one thread, and what moves their bytes. */
typedef struct bw_initiator bw_initiator;

/* One volume: what its URLs name. */
typedef struct bw_volume bw_volume;

/* bw_options.io */
#define BW_IO_AUTO 0  /* io_uring where the system allows it, else epoll */
#define BW_IO_URING 1 /* io_uring, or bw_initiator_new fails */
#define BW_IO_EPOLL 2

/* bw_options.nexus */
#define BW_NEXUS_PASSING 0 /* targets see a new initiator port each time: several may run side by side */
#define BW_NEXUS_LASTING 1 /* the same one each time, as reservations over iSCSI need it: one at a time */

/* How an initiator is set up. Fill it by bw_options_init, then change what you like. */
typedef struct bw_options {
    uint32_t size; /* of this struct, in bytes */
    uint32_t io;
    uint32_t nexus;
    uint32_t open_timeout_ms;  /* longest bw_open, beside what the URL says; 30000 */
    uint32_t close_timeout_ms; /* longest polite end of a volume; 2000 */
    uint32_t poll_us_max;      /* look at memory for so long before sleeping; 0: never; up to 1000000 */
    uint64_t memory;           /* for headers and small data, 1 MiB to 64 GiB; 16 MiB */
} bw_options;

/* The defaults. `size` is sizeof(bw_options): no more is written. */
void bw_options_init(bw_options *options, size_t size);

/* Sets an initiator up for the calling thread. `options` may be NULL: the defaults.
 * BW_E_FAILED: the system does not give what it needs. */
int bw_initiator_new(const bw_options *options, bw_initiator **initiator);

/* Ends an initiator. Volumes that are open are cut off at once and their handles dead; all buffers are the
 * caller's again when it returns. NULL is allowed. */
int bw_initiator_free(bw_initiator *initiator);

/* --- Volumes ------------------------------------------------------------------------------------------ */

/* Opens a volume by all the paths that the URLs name (joined by commas), and waits until one serves.
 * URLs are those of the blockwire command, options and all:
 *     iscsi://HOST[:3260]/IQN/LUN[?OPTION=VALUE[&...]]
 *     nvme+tcp://HOST[:4420]/NQN/NSID[?OPTION=VALUE[&...]]
 * At most 1024 volumes of one initiator. */
int bw_open(bw_initiator *initiator, const char *urls, bw_volume **volume);

/* As bw_open, without waiting for more than names to be resolved: poll until bw_state() says BW_STATE_OPEN, or
 * that it failed: after open_timeout_ms at the latest. A volume that cannot be opened is still to be closed. */
int bw_open_begin(bw_initiator *initiator, const char *urls, bw_volume **volume);

#define BW_STATE_OPENING 0
#define BW_STATE_OPEN 1

/* BW_STATE_OPENING or BW_STATE_OPEN; a BW_E_ code (with its message) if the volume could not be opened. */
int bw_state(bw_volume *volume);

/* Ends a volume and frees its handle: what is in work is finished, at most for close_timeout_ms, and the
 * target is told. Completions that were not polled are dropped; all buffers are the caller's again when it
 * returns. BW_E_TIMED_OUT: the target did not let go in time; the volume is closed all the same.
 * NULL is allowed. */
int bw_close(bw_volume *volume);

/* bw_geometry.flags */
#define BW_GEOMETRY_READ_ONLY 1u   /* writes are refused */
#define BW_GEOMETRY_WRITE_CACHE 2u /* answered writes may be lost with power until they are flushed */
#define BW_GEOMETRY_THIN 4u        /* space is allocated by writing only */
#define BW_GEOMETRY_ZEROES 8u      /* blocks that were discarded read as zeroes */

/* What a volume is like. */
typedef struct bw_geometry {
    uint64_t bytes;    /* of the whole volume */
    uint32_t block;    /* bytes of a logical block: 512 or more, a power of two */
    uint32_t physical; /* bytes of a physical block: at least `block`; writes of these need no read */
    uint32_t io_max;   /* most bytes of one command; longer I/O is cut into several */
    uint32_t flags;    /* BW_GEOMETRY_ */
} bw_geometry;

/* BW_E_USAGE: the volume is not open yet. `size` is sizeof(bw_geometry): no more is written. */
int bw_geometry_of(bw_volume *volume, bw_geometry *geometry, size_t size);

/* 1 if size, access or protection has changed since this was last asked, else 0. */
int bw_has_changed(bw_volume *volume);

/* --- Calls that wait ---------------------------------------------------------------------------------- */

/* Each does all of it or says what failed; a write that failed may have been done in part, block by block.
 * Completions of operations that were submitted are kept for bw_poll meanwhile. A length of 0 does nothing.
 * How long they may take is for the URL to say (command_timeout, queue_timeout, fast_fail). */
int bw_read(bw_volume *volume, void *data, size_t len, uint64_t offset);
/* flags: BW_FUA or 0 */
int bw_write(bw_volume *volume, const void *data, size_t len, uint64_t offset, uint32_t flags);
/* Makes what was written and answered stable. */
int bw_flush(bw_volume *volume);
/* Gives space back. What is read there afterwards is zero if BW_GEOMETRY_ZEROES, else anything. */
int bw_discard(bw_volume *volume, uint64_t len, uint64_t offset);
/* Writes zeroes. flags: BW_ALLOCATE or 0. */
int bw_write_zeroes(bw_volume *volume, uint64_t len, uint64_t offset, uint32_t flags);

/* --- Calls that do not wait --------------------------------------------------------------------------- */

/* bw_request.op */
#define BW_READ 0
#define BW_WRITE 1
#define BW_FLUSH 2        /* data NULL, len 0, offset 0 */
#define BW_DISCARD 3      /* data NULL */
#define BW_WRITE_ZEROES 4 /* data NULL */

/* bw_request.flags */
#define BW_FUA 1u      /* BW_WRITE: on stable storage before it completes */
#define BW_ALLOCATE 2u /* BW_WRITE_ZEROES: keep the space; without, the target may give it back */

/* An operation. Fill what is not named with zeroes. */
typedef struct bw_request {
    uint32_t op;
    uint32_t flags;
    void *data; /* BW_READ: to be filled; BW_WRITE: to be read, and not changed */
    uint64_t len;
    uint64_t offset;
    void *user; /* the caller's own: comes back in the completion */
} bw_request;

/* How an operation ended. */
typedef struct bw_completion {
    void *user;
    bw_volume *volume;
    uint64_t id;    /* as bw_submit gave it */
    uint64_t block; /* BW_E_MEDIUM: the first block, in blocks of the volume; else 0 */
    int32_t status; /* BW_OK or a BW_E_ code: all of the bytes were moved, or it failed */
    uint32_t reserved;
} bw_completion;

/* Starts an operation. It completes exactly once, by bw_poll, unless the volume is closed before. What was
 * submitted leaves with the next bw_poll, many operations in one call of the system. Operations in flight
 * at the same time are carried out in any order; a flush covers what completed before it was submitted.
 * `id`, if not NULL, becomes its name, for bw_cancel. The request itself is not kept.
 * BW_E_AGAIN: 1024 operations of the volume are in work. Any failure: nothing was started. */
int bw_submit(bw_volume *volume, const bw_request *request, uint64_t *id);

/* One piece of memory; laid out as struct iovec. */
typedef struct bw_piece {
    void *data;
    size_t len; /* any number; 0: nothing is there */
} bw_piece;

/* Most pieces of one operation. */
#define BW_PIECES_MAX 1024

/* As bw_submit, for BW_READ and BW_WRITE whose bytes lie in several places, one behind the other: in `count`
 * pieces. request->data is NULL and request->len 0; the length of all pieces together is a multiple of the
 * volume's blocks, that of each is any. The array itself is not kept. */
int bw_submitv(bw_volume *volume, const bw_request *request, const bw_piece *pieces, size_t count,
               uint64_t *id);

/* Asks that an operation end early. It still completes: as it would have, or with BW_E_ABORTED. A name that
 * is no longer in work is no failure. */
int bw_cancel(bw_volume *volume, uint64_t id);

/* Moves what is ready, and takes up to `max` completions of all volumes: how many there were.
 * If there are none it waits for at most timeout_ms (0: not at all; below zero: until something is there),
 * but not if nothing is in work nor opens. 0 with time left: a volume opened or failed to. */
int bw_poll(bw_initiator *initiator, bw_completion *completions, size_t max, int timeout_ms);

/* Operations that were submitted and whose completions were not taken yet. */
int bw_in_flight(bw_initiator *initiator);

/* For a loop of the caller's own: wait until the descriptor is readable or bw_timeout_ms() is over, then call
 * bw_poll with timeout 0. The descriptor is to be watched only: never read, written or closed. It stays the
 * same as long as the initiator lives. */
int bw_fd(bw_initiator *initiator);

/* How long such a loop may wait from now on, as poll(2) takes it: milliseconds, 0 if bw_poll has something to
 * do already, -1 as long as it likes. Ask again before each wait. A failure (see above) is below -1. */
int bw_timeout_ms(bw_initiator *initiator);

/* --- Raw commands ------------------------------------------------------------------------------------- */

/* Commands of the caller's own: a CDB, or the fields of a submission queue entry. Each call waits for the answer.
 *
 * A raw command goes to the target once, by the path of its protocol that serves with the fewest commands in work (or
 * that is up, if none serves), and is not retried, not cut into pieces and not ordered against reads and writes of
 * this library: let those on the same blocks complete first. bw_flush covers what it wrote. It takes at most
 * command_timeout of the URL and is then aborted, waits for a path for at most queue_timeout, and has at most 4 MiB
 * of data, which is copied.
 *
 * BW_OK: there is an answer, of whatever status; SCSI 0 is GOOD, NVMe 0 is success. A unit attention is an answer too:
 * the command was not done. Else nothing is written to `answer`, and bw_error_message() says whether the command may
 * have been done. BW_E_USAGE: it makes no sense, or would break what the path keeps: Fabrics commands, queues, Keep
 * Alive, events, Abort; and reservations while the initiator keeps a registration of the volume. BW_E_READ_ONLY: it may
 * write, and the URL says ro=yes. BW_E_UNSUPPORTED: the volume has no path of this protocol. */

/* Which way the data of bw_scsi goes. */
#define BW_DATA_NONE 0 /* len is 0 */
#define BW_DATA_IN 1   /* from the target: data is filled with what came, and not written beyond it */
#define BW_DATA_OUT 2  /* to the target */

/* Most bytes of sense data. */
#define BW_SENSE_MAX 252

typedef struct bw_scsi_answer {
    uint32_t status;      /* SAM-5: 00h GOOD, 02h CHECK CONDITION, 18h RESERVATION CONFLICT, ... */
    uint32_t transferred; /* bytes of data that moved: what is behind them in `data` is as it was before */
    uint32_t underflow;   /* bytes of `len` that the command had no use for */
    uint32_t overflow;    /* bytes that the command had beyond `len` */
    uint32_t sense_len;
    uint8_t sense[BW_SENSE_MAX];
} bw_scsi_answer;

/* Sends a CDB of 6 to 260 bytes to the logical unit. `answer_size` is sizeof(bw_scsi_answer). */
int bw_scsi(bw_volume *volume, const void *cdb, size_t cdb_len, uint32_t direction, void *data, size_t len,
            bw_scsi_answer *answer, size_t answer_size);

/* Fill what is not named with zeroes. Command identifier, PSDT and data pointer are the library's. */
typedef struct bw_nvme_command {
    uint8_t opcode; /* its low two bits say which way data goes: 1 to the controller, 2 from it */
    uint8_t flags;  /* 0: half of a fused pair is refused */
    uint16_t reserved;
    uint32_t nsid;  /* bw_nvme_io: 0 is the namespace of the volume */
    uint32_t cdw2;
    uint32_t cdw3;
    uint32_t cdw10;
    uint32_t cdw11;
    uint32_t cdw12;
    uint32_t cdw13;
    uint32_t cdw14;
    uint32_t cdw15;
} bw_nvme_command;

typedef struct bw_nvme_answer {
    uint32_t status;      /* code in bits 7:0, type in 10:8, retry delay in 12:11, more in 13, do not retry in 14 */
    uint32_t transferred; /* bytes of data that moved: what is behind them in `data` is as it was before */
    uint64_t result;      /* dwords 0 (low) and 1 of the completion */
} bw_nvme_answer;

/* By the admin queue, and by an I/O queue. `answer_size` is sizeof(bw_nvme_answer). */
int bw_nvme_admin(bw_volume *volume, const bw_nvme_command *command, void *data, size_t len,
                  bw_nvme_answer *answer, size_t answer_size);
int bw_nvme_io(bw_volume *volume, const bw_nvme_command *command, void *data, size_t len,
               bw_nvme_answer *answer, size_t answer_size);

#ifdef __cplusplus
}
#endif

#endif /* BLOCKWIRE_H */
