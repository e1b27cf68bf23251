/* Copies one volume to another, many reads and writes in flight, from a loop of its own.
 *
 *     cc -o copy copy.c $(pkg-config --cflags --libs blockwire)
 *     ./copy iscsi://127.0.0.1/iqn.2026-11.io.blockwire:a/0 nvme+tcp://127.0.0.1/nqn.2026-11.io.blockwire:b/1
 */
#include <blockwire.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE (256u * 1024)
#define DEPTH 16

/* A piece on its way: read from one volume, then written to the other from the same memory. */
struct piece {
    unsigned char *data;
    uint64_t offset, len;
    int is_read;
};

static void fail(const char *what)
{
    fprintf(stderr, "copy: %s: %s\n", what, bw_error_message());
    exit(1);
}

static void begin(bw_volume *volume, uint32_t op, struct piece *piece)
{
    bw_request request;
    memset(&request, 0, sizeof request);
    request.op = op;
    request.data = piece->data;
    request.len = piece->len;
    request.offset = piece->offset;
    request.user = piece;
    piece->is_read = op == BW_READ;
    /* Far fewer are in flight than BW_E_AGAIN is for. */
    if (bw_submit(volume, &request, NULL) < 0)
        fail("submit");
}

/* Reads the next piece, if one is left. */
static void next(bw_volume *from, struct piece *piece, uint64_t *at, uint64_t bytes)
{
    if (*at == bytes)
        return;
    piece->offset = *at;
    piece->len = bytes - *at < PIECE ? bytes - *at : PIECE;
    *at += piece->len;
    begin(from, BW_READ, piece);
}

int main(int argc, char **argv)
{
    bw_initiator *initiator;
    bw_volume *from, *to;
    bw_geometry source, sink;
    struct piece pieces[DEPTH];
    uint64_t at = 0;
    int i;

    if (argc != 3) {
        fprintf(stderr, "usage: copy FROM TO (URLs of volumes; what TO holds is lost)\n");
        return 2;
    }
    if (bw_abi_version() != BW_ABI_VERSION) {
        fprintf(stderr, "copy: libblockwire %s has another interface\n", bw_version());
        return 1;
    }
    if (bw_initiator_new(NULL, &initiator) < 0)
        fail("initiator");
    if (bw_open(initiator, argv[1], &from) < 0 || bw_open(initiator, argv[2], &to) < 0)
        fail("open");
    if (bw_geometry_of(from, &source, sizeof source) < 0 || bw_geometry_of(to, &sink, sizeof sink) < 0)
        fail("geometry");
    if (sink.bytes < source.bytes || source.bytes % sink.block != 0) {
        fprintf(stderr, "copy: %s is too small, or its blocks do not fit\n", argv[2]);
        return 1;
    }

    for (i = 0; i < DEPTH; i++) {
        pieces[i].data = malloc(PIECE);
        if (pieces[i].data == NULL) {
            perror("copy");
            return 1;
        }
        next(from, &pieces[i], &at, source.bytes);
    }
    while (bw_in_flight(initiator) > 0) {
        bw_completion done[DEPTH];
        struct pollfd ready;
        int count;

        ready.fd = bw_fd(initiator);
        ready.events = POLLIN;
        if (poll(&ready, 1, bw_timeout_ms(initiator)) < 0 && errno != EINTR) {
            perror("copy: poll");
            return 1;
        }
        count = bw_poll(initiator, done, DEPTH, 0);
        if (count < 0)
            fail("poll");
        for (i = 0; i < count; i++) {
            struct piece *piece = done[i].user;
            if (done[i].status < 0) {
                fprintf(stderr, "copy: %s at byte %" PRIu64 ": %s\n", piece->is_read ? "read" : "write",
                        piece->offset, bw_strerror(done[i].status));
                return 1;
            }
            if (piece->is_read)
                begin(to, BW_WRITE, piece);
            else
                next(from, piece, &at, source.bytes);
        }
    }
    if (bw_flush(to) < 0)
        fail("flush");
    for (i = 0; i < DEPTH; i++)
        free(pieces[i].data);
    if (bw_close(from) < 0 || bw_close(to) < 0)
        fail("close");
    bw_initiator_free(initiator);
    printf("%" PRIu64 " bytes copied\n", source.bytes);
    return 0;
}
