/* Proves libblockwire from C, on volumes that hold nothing of worth: check GOOD-URL BAD-URL...
 * Each BAD-URL fails to open, with the code in front of it: -3=iscsi://...
 */
#define _POSIX_C_SOURCE 200112L
#include <blockwire.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what)                                                                                        \
    do {                                                                                                  \
        if (!(what)) {                                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, bw_error_message());            \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define DEPTH 64
#define COMPARED 4096u
#define LONG (5u << 20)

static void fill(unsigned char *data, size_t len, unsigned seed)
{
    size_t at;
    for (at = 0; at < len; at++) {
        seed = seed * 1103515245u + 12345u;
        data[at] = (unsigned char)(seed >> 16);
    }
}

/* Calls that wait: bytes come back, also such as many commands carry, at no alignment of memory. */
static void waits(bw_volume *disk, const bw_geometry *is)
{
    unsigned char *out = malloc(LONG + 1), *back = malloc(LONG + 1);
    size_t at;

    MUST(out && back);
    fill(out, LONG + 1, 7);
    MUST(bw_write(disk, out + 1, LONG, is->block, 0) == 0);
    memset(back, 0, LONG + 1);
    MUST(bw_read(disk, back + 1, LONG, is->block) == 0);
    MUST(memcmp(out + 1, back + 1, LONG) == 0);
    MUST(bw_write(disk, out, is->block, is->bytes - is->block, BW_FUA) == 0);
    MUST(bw_read(disk, back, is->block, is->bytes - is->block) == 0);
    MUST(memcmp(out, back, is->block) == 0);
    MUST(bw_flush(disk) == 0);
    MUST(bw_write_zeroes(disk, 1 << 20, 0, 0) == 0);
    MUST(bw_write_zeroes(disk, 1 << 20, 1 << 20, BW_ALLOCATE) == 0);
    MUST(bw_read(disk, back, 2 << 20, 0) == 0);
    for (at = 0; at < 2 << 20; at++)
        MUST(back[at] == 0);
    MUST(bw_discard(disk, 1 << 20, 2 << 20) == 0);
    if (is->flags & BW_GEOMETRY_ZEROES) {
        MUST(bw_read(disk, back, 1 << 20, 2 << 20) == 0);
        for (at = 0; at < 1 << 20; at++)
            MUST(back[at] == 0);
    }
    MUST(bw_read(disk, back, 0, 0) == 0);
    free(out);
    free(back);
}

/* What makes no sense is refused, and changes nothing. */
static void refused(bw_initiator *initiator, bw_volume *disk, const bw_geometry *is)
{
    unsigned char block[8192];
    bw_request request;
    bw_completion done;

    memset(block, 1, sizeof block);
    MUST(bw_read(disk, block, is->block, 1) == BW_E_USAGE);
    MUST(bw_read(disk, block, is->block - 1, 0) == BW_E_USAGE);
    MUST(bw_read(disk, block, is->block, is->bytes) == BW_E_USAGE);
    MUST(strstr(bw_error_message(), "beyond") != NULL);
    MUST(bw_read(disk, block, is->block, UINT64_MAX - is->block + 1) == BW_E_USAGE);
    MUST(bw_read(disk, NULL, is->block, 0) == BW_E_USAGE);
    MUST(bw_write(disk, block, is->block, 0, BW_ALLOCATE) == BW_E_USAGE);
    MUST(bw_read(NULL, block, is->block, 0) == BW_E_USAGE);
    memset(&request, 0, sizeof request);
    MUST(bw_submit(disk, NULL, NULL) == BW_E_USAGE);
    request.op = 99;
    MUST(bw_submit(disk, &request, NULL) == BW_E_USAGE);
    request.op = BW_FLUSH;
    request.flags = BW_FUA;
    MUST(bw_submit(disk, &request, NULL) == BW_E_USAGE);
    MUST(bw_poll(initiator, NULL, 1, 0) == BW_E_USAGE && bw_poll(initiator, &done, 0, 0) == BW_E_USAGE);
    MUST(bw_in_flight(initiator) == 0);
    /* With nothing in work there is nothing to wait for. */
    MUST(bw_poll(initiator, &done, 1, -1) == 0);
}

/* A place on the volume that is written, read back and compared again and again. */
struct slot {
    unsigned char out[4096], back[4096];
    uint64_t offset;
    int is_read;
};

static void turn(bw_volume *disk, struct slot *slot, int is_read, uint32_t flags)
{
    bw_request request;
    memset(&request, 0, sizeof request);
    slot->is_read = is_read;
    request.op = is_read ? BW_READ : BW_WRITE;
    request.flags = flags;
    request.data = is_read ? slot->back : slot->out;
    request.len = sizeof slot->out;
    request.offset = slot->offset;
    request.user = slot;
    MUST(bw_submit(disk, &request, NULL) == 0);
}

/* Operations in flight, completed in a loop of our own. */
static void loops(bw_initiator *initiator, bw_volume *disk)
{
    static struct slot slots[DEPTH];
    unsigned compared = 0, at;
    bw_completion done[8];

    for (at = 0; at < DEPTH; at++) {
        fill(slots[at].out, sizeof slots[at].out, at);
        slots[at].offset = (uint64_t)at * 4096;
        turn(disk, &slots[at], 0, at % 3 == 0 ? BW_FUA : 0);
    }
    MUST(bw_in_flight(initiator) == DEPTH && bw_timeout_ms(initiator) == 0);
    while (bw_in_flight(initiator) > 0) {
        struct pollfd ready;
        int count, i;
        ready.fd = bw_fd(initiator);
        ready.events = POLLIN;
        MUST(poll(&ready, 1, bw_timeout_ms(initiator)) >= 0);
        count = bw_poll(initiator, done, 8, 0);
        MUST(count >= 0);
        for (i = 0; i < count; i++) {
            struct slot *slot = done[i].user;
            MUST(done[i].status == 0 && done[i].volume == disk && done[i].id != 0);
            if (!slot->is_read) {
                turn(disk, slot, 1, 0);
                continue;
            }
            MUST(memcmp(slot->out, slot->back, sizeof slot->out) == 0);
            fill(slot->out, sizeof slot->out, DEPTH + ++compared);
            if (compared < COMPARED)
                turn(disk, slot, 0, 0);
        }
    }
    MUST(compared >= COMPARED);
}

/* Bytes in many places, of odd lengths, over more than one command; and what makes no sense. */
static void scatters(bw_initiator *initiator, bw_volume *disk, const bw_geometry *is)
{
    static const size_t lengths[] = {1, 511, 0, 4096, 3, 70001, 2, 513};
    size_t kinds = sizeof lengths / sizeof *lengths, count = 0, at = 0, len;
    unsigned char *out = malloc(LONG), *back = malloc(LONG);
    bw_piece pieces[BW_PIECES_MAX];
    bw_request request;
    bw_completion done;

    MUST(out && back);
    fill(out, LONG, 99);
    /* As many pieces as there may be; the read that follows puts the halves in the other order. */
    while (at < LONG && count < BW_PIECES_MAX - 1) {
        len = lengths[count % kinds];
        if (len > LONG - at)
            len = LONG - at;
        pieces[count].data = out + at;
        pieces[count++].len = len;
        at += len;
    }
    pieces[count].data = out + at;
    pieces[count++].len = LONG - at;
    memset(&request, 0, sizeof request);
    request.op = BW_WRITE;
    request.offset = is->block;
    request.user = pieces;
    MUST(bw_submitv(disk, &request, pieces, count, NULL) == 0);
    MUST(bw_poll(initiator, &done, 1, 20000) == 1 && done.status == 0 && done.user == pieces);
    MUST(bw_read(disk, back, LONG, is->block) == 0 && memcmp(out, back, LONG) == 0);
    memset(back, 0, LONG);
    pieces[0].data = back + LONG / 2;
    pieces[1].data = back;
    pieces[0].len = pieces[1].len = LONG / 2;
    request.op = BW_READ;
    MUST(bw_submitv(disk, &request, pieces, 2, NULL) == 0);
    MUST(bw_poll(initiator, &done, 1, 20000) == 1 && done.status == 0);
    MUST(memcmp(out, back + LONG / 2, LONG / 2) == 0 && memcmp(out + LONG / 2, back, LONG / 2) == 0);
    MUST(bw_submitv(disk, &request, NULL, 1, NULL) == BW_E_USAGE);
    MUST(bw_submitv(disk, &request, pieces, 0, NULL) == BW_E_USAGE);
    MUST(bw_submitv(disk, &request, pieces, BW_PIECES_MAX + 1, NULL) == BW_E_USAGE);
    pieces[0].len--;
    MUST(bw_submitv(disk, &request, pieces, 2, NULL) == BW_E_USAGE);
    pieces[0].data = NULL;
    MUST(bw_submitv(disk, &request, pieces, 1, NULL) == BW_E_USAGE);
    request.op = BW_FLUSH;
    MUST(bw_submitv(disk, &request, pieces, 1, NULL) == BW_E_USAGE);
    MUST(bw_in_flight(initiator) == 0);
    free(out);
    free(back);
}

/* More than can be in work is pushed back; a cancel ends, a close takes what is left. */
static void crowds(bw_initiator *initiator, const char *url)
{
    static unsigned char data[4096];
    bw_completion done[64];
    bw_volume *disk;
    bw_request request;
    uint64_t id = 0;
    int begun = 0, ended = 0, rc;

    MUST(bw_open(initiator, url, &disk) == 0);
    memset(&request, 0, sizeof request);
    request.op = BW_WRITE;
    request.data = data;
    request.len = sizeof data;
    while ((rc = bw_submit(disk, &request, &id)) == 0 && begun < 100000)
        begun++;
    MUST(rc == BW_E_AGAIN && begun >= 1024);
    MUST(bw_cancel(disk, id) == 0 && bw_cancel(disk, 12345) == 0);
    while (ended < begun / 2) {
        int i, count = bw_poll(initiator, done, 64, 5000);
        MUST(count > 0);
        for (i = 0; i < count; i++)
            MUST(done[i].status == 0 || (done[i].status == BW_E_ABORTED && done[i].id == id));
        ended += count;
    }
    /* Half are never polled. */
    MUST(bw_submit(disk, &request, NULL) == 0);
    MUST(bw_close(disk) == 0);
    MUST(bw_in_flight(initiator) == 0);
}

/* Commands of our own over iSCSI: an answer is handed out as it is, and no byte that did not come. */
static void raw_scsi(bw_volume *disk, const bw_geometry *is)
{
    static const unsigned char inquiry[6] = {0x12, 0, 0, 0, 255, 0}, unit_ready[6] = {0};
    unsigned char read[16] = {0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, data[8192], block[8192];
    bw_scsi_answer answer;
    bw_nvme_answer other;
    bw_nvme_command identify;
    unsigned at;

    memset(data, 0xee, sizeof data);
    MUST(bw_scsi(disk, inquiry, 6, BW_DATA_IN, data, 255, &answer, sizeof answer) == 0);
    MUST(answer.status == 0 && answer.transferred >= 36 && answer.transferred + answer.underflow == 255);
    MUST(memcmp(data + 8, "BLKWIRE ", 8) == 0);
    for (at = answer.transferred; at < sizeof data; at++)
        MUST(data[at] == 0xee);
    MUST(bw_scsi(disk, unit_ready, 6, BW_DATA_NONE, NULL, 0, &answer, sizeof answer) == 0 && answer.status == 0);
    /* What is read raw is what is read. */
    MUST(bw_read(disk, block, is->block, 0) == 0);
    MUST(bw_scsi(disk, read, 16, BW_DATA_IN, data, is->block, &answer, sizeof answer) == 0);
    MUST(answer.status == 0 && answer.transferred == is->block && memcmp(data, block, is->block) == 0);
    /* Beyond the end: CHECK CONDITION, ILLEGAL REQUEST, and nothing in the buffer. */
    memset(data, 0xee, sizeof data);
    memset(read + 2, 0x7f, 8);
    MUST(bw_scsi(disk, read, 16, BW_DATA_IN, data, is->block, &answer, sizeof answer) == 0);
    MUST(answer.status == 2 && answer.sense_len >= 8 && (answer.sense[2] & 15) == 5 && data[0] == 0xee);
    MUST(answer.transferred == 0);
    MUST(bw_scsi(disk, read, 15, BW_DATA_IN, data, is->block, &answer, sizeof answer) == BW_E_USAGE);
    MUST(bw_scsi(disk, read, 16, BW_DATA_OUT, data, is->block, &answer, sizeof answer) == BW_E_USAGE);
    MUST(bw_scsi(disk, read, 16, BW_DATA_IN, NULL, 512, &answer, sizeof answer) == BW_E_USAGE);
    MUST(bw_scsi(disk, read, 16, 9, data, 512, &answer, sizeof answer) == BW_E_USAGE);
    MUST(bw_scsi(disk, NULL, 16, BW_DATA_IN, data, 512, &answer, sizeof answer) == BW_E_USAGE);
    MUST(bw_scsi(disk, read, 16, BW_DATA_IN, data, 512, NULL, 0) == BW_E_USAGE);
    MUST(bw_scsi(NULL, read, 16, BW_DATA_IN, data, 512, &answer, sizeof answer) == BW_E_USAGE);
    memset(&identify, 0, sizeof identify);
    identify.opcode = 6;
    identify.cdw10 = 1;
    MUST(bw_nvme_admin(disk, &identify, data, 4096, &other, sizeof other) == BW_E_UNSUPPORTED);
}

/* The same over NVMe/TCP. */
static void raw_nvme(bw_volume *disk, const bw_geometry *is)
{
    static const unsigned char inquiry[6] = {0x12, 0, 0, 0, 255, 0};
    unsigned char data[8192], block[8192];
    bw_nvme_command command;
    bw_nvme_answer answer;
    bw_scsi_answer other;

    memset(data, 0xee, sizeof data);
    memset(&command, 0, sizeof command);
    command.opcode = 6; /* Identify Controller */
    command.cdw10 = 1;
    MUST(bw_nvme_admin(disk, &command, data, 4096, &answer, sizeof answer) == 0);
    MUST(answer.status == 0 && answer.transferred == 4096 && data[4096] == 0xee);
    MUST(memcmp(data + 768, "nqn.", 4) == 0);
    command.opcode = 10; /* Get Features: Number of Queues */
    command.cdw10 = 7;
    MUST(bw_nvme_admin(disk, &command, NULL, 0, &answer, sizeof answer) == 0 && answer.status == 0);
    /* What the path keeps is refused by name. */
    command.opcode = 9;
    MUST(bw_nvme_admin(disk, &command, NULL, 0, &answer, sizeof answer) == BW_E_USAGE);
    MUST(strstr(bw_error_message(), "Number of Queues") != NULL);
    command.opcode = 0x7f;
    MUST(bw_nvme_admin(disk, &command, NULL, 0, &answer, sizeof answer) == BW_E_USAGE);
    MUST(strstr(bw_error_message(), "Fabrics") != NULL);
    /* What is read raw is what is read; the namespace is the volume's. */
    memset(&command, 0, sizeof command);
    command.opcode = 2;
    MUST(bw_read(disk, block, is->block, 0) == 0);
    MUST(bw_nvme_io(disk, &command, data, is->block, &answer, sizeof answer) == 0 && answer.status == 0);
    MUST(answer.transferred == is->block && memcmp(data, block, is->block) == 0);
    memset(data, 0xee, sizeof data);
    command.cdw11 = 0x7fffffff; /* beyond the end: LBA Out of Range */
    MUST(bw_nvme_io(disk, &command, data, is->block, &answer, sizeof answer) == 0);
    MUST((answer.status & 0x7ff) == 0x80 && answer.transferred == 0 && data[0] == 0xee);
    command.flags = 1;
    MUST(bw_nvme_io(disk, &command, data, is->block, &answer, sizeof answer) == BW_E_USAGE);
    command.flags = 0;
    MUST(bw_nvme_io(disk, NULL, data, is->block, &answer, sizeof answer) == BW_E_USAGE);
    MUST(bw_nvme_io(disk, &command, data, (4 << 20) + 1, &answer, sizeof answer) == BW_E_USAGE);
    MUST(bw_scsi(disk, inquiry, 6, BW_DATA_IN, data, 255, &other, sizeof other) == BW_E_UNSUPPORTED);
}

static void *elsewhere(void *initiator)
{
    bw_completion done;
    MUST(bw_poll(initiator, &done, 1, 0) == BW_E_THREAD);
    MUST(bw_initiator_free(initiator) == BW_E_THREAD);
    return NULL;
}

/* Opening without waiting, beside a volume that is in use. */
static void opens(bw_initiator *initiator, const char *url)
{
    unsigned char block[4096];
    bw_completion done;
    bw_volume *disk;

    MUST(bw_open_begin(initiator, url, &disk) == 0);
    MUST(bw_state(disk) == BW_STATE_OPENING);
    MUST(bw_read(disk, block, 4096, 0) == BW_E_USAGE);
    while (bw_state(disk) == BW_STATE_OPENING)
        MUST(bw_poll(initiator, &done, 1, 5000) == 0);
    MUST(bw_state(disk) == BW_STATE_OPEN);
    MUST(bw_read(disk, block, 4096, 0) == 0);
    MUST(bw_close(disk) == 0);
}

static void fails(bw_initiator *initiator, const char *argument)
{
    const char *url = strchr(argument, '=');
    int status = atoi(argument), rc;
    bw_volume *disk = NULL;

    MUST(url != NULL);
    rc = bw_open(initiator, url + 1, &disk);
    if (rc != status || disk != NULL) {
        fprintf(stderr, "%s: %d: %s\n", argument, rc, bw_error_message());
        exit(1);
    }
    MUST(bw_error_message()[0] != 0 && bw_strerror(rc)[0] != 0 && bw_errno(rc) > 0);
    MUST(strstr(bw_error_message(), "hush") == NULL);
    printf("%d (%s): %s\n", rc, bw_strerror(rc), bw_error_message());
    /* Without waiting it is the same in the end. */
    if (status != BW_E_USAGE && bw_open_begin(initiator, url + 1, &disk) == 0) {
        bw_completion done;
        while (bw_state(disk) == BW_STATE_OPENING)
            MUST(bw_poll(initiator, &done, 1, 30000) == 0);
        MUST(bw_state(disk) == status);
        MUST(bw_close(disk) == 0);
    }
}

int main(int argc, char **argv)
{
    bw_options options;
    bw_initiator *initiator = NULL;
    bw_volume *disk;
    bw_geometry is;
    pthread_t thread;
    int at;

    MUST(argc >= 2 && bw_abi_version() == BW_ABI_VERSION);
    MUST(bw_initiator_new(NULL, NULL) == BW_E_USAGE);
    bw_options_init(&options, sizeof options);
    MUST(options.size == sizeof options && options.memory > 0);
    options.io = 7;
    MUST(bw_initiator_new(&options, &initiator) == BW_E_USAGE && initiator == NULL);
    options.io = getenv("IO") && strcmp(getenv("IO"), "epoll") == 0 ? BW_IO_EPOLL : BW_IO_AUTO;
    options.open_timeout_ms = 5000;
    MUST(bw_initiator_new(&options, &initiator) == 0);
    MUST(bw_open(initiator, NULL, &disk) == BW_E_USAGE && bw_open(NULL, argv[1], &disk) == BW_E_USAGE);
    MUST(bw_open(initiator, argv[1], &disk) == 0 && bw_state(disk) == BW_STATE_OPEN);
    MUST(bw_geometry_of(disk, &is, sizeof is) == 0);
    MUST(is.bytes >= 16u << 20 && is.block >= 512 && is.physical >= is.block && is.io_max >= is.block);
    MUST(bw_has_changed(disk) >= 0);
    waits(disk, &is);
    refused(initiator, disk, &is);
    loops(initiator, disk);
    scatters(initiator, disk, &is);
    opens(initiator, argv[1]);
    if (strncmp(argv[1], "iscsi", 5) == 0)
        raw_scsi(disk, &is);
    else
        raw_nvme(disk, &is);
    crowds(initiator, argv[1]);
    for (at = 2; at < argc; at++)
        fails(initiator, argv[at]);
    MUST(pthread_create(&thread, NULL, elsewhere, initiator) == 0 && pthread_join(thread, NULL) == 0);
    MUST(bw_close(disk) == 0 && bw_close(NULL) == 0);
    /* An initiator ends with its volumes. */
    MUST(bw_open(initiator, argv[1], &disk) == 0);
    MUST(bw_initiator_free(initiator) == 0 && bw_initiator_free(NULL) == 0);
    return 0;
}
