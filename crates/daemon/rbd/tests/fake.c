/*
 * librados and librbd as far as they are used, over a file, with faults: for tests.
 *
 * The configuration file names a directory ("dir = PATH"). A pool is a directory in it, an image a file in that.
 * The file "control" in it is read at each call, one word per line:
 *   hold        completions are kept until this line is gone
 *   lose        completions are never told
 *   fail=N      operations end with -N (asynchronously)
 *   refuse=N    operations are refused with -N
 *   delay=MS    operations end that much later
 *   short=N     reads give N bytes at most
 *   cache=on    the image has a cache
 *   owner=ADDR  another client has the lock; connected=1: it is connected
 *   features=N  features of the image
 *   silent      opening the image does not return
 *   connect=N   connecting fails with -N
 * Each image's calls are written to "IMAGE.log": aligned words, one call per line.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct cluster { char dir[300], user[64]; };
struct pool { struct cluster *cluster; char name[128], space[64]; };
typedef void (*callback)(void *, void *);
struct completion { callback call; void *argument; ssize_t result; };
struct image {
  struct pool *pool;
  char path[600], log[620], owner[64];
  int fd, writable, watching;
  uint64_t size_before;
  void (*updated)(void *);
  void *updated_argument;
  pthread_t watcher;
};

/* The value of a line of the control file: 1 if it is there, its number behind "=" if it has one. */
static long control(const struct cluster *cluster, const char *word, char *text) {
  char path[320], line[200];
  long found = 0;
  snprintf(path, sizeof path, "%s/control", cluster->dir);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    size_t len = strlen(word);
    if (strncmp(line, word, len) || (line[len] && line[len] != '=')) continue;
    found = line[len] ? strtol(line + len + 1, NULL, 0) : 1;
    if (text) snprintf(text, 64, "%s", line[len] ? line + len + 1 : "");
    if (!found && line[len]) found = 1;
  }
  fclose(file);
  return found;
}

static void log_call(struct image *image, const char *what, uint64_t offset, uint64_t len) {
  FILE *file = fopen(image->log, "a");
  if (!file) return;
  fprintf(file, "%s %llu %llu\n", what, (unsigned long long)offset, (unsigned long long)len);
  fclose(file);
}

int rados_create(void **to, const char *user) {
  struct cluster *cluster = calloc(1, sizeof *cluster);
  snprintf(cluster->user, sizeof cluster->user, "%s", user);
  *to = cluster;
  return 0;
}
int rados_conf_read_file(struct cluster *cluster, const char *path) {
  char line[300];
  FILE *file = fopen(path, "r");
  if (!file) return -errno;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (!strncmp(line, "dir = ", 6)) snprintf(cluster->dir, sizeof cluster->dir, "%s", line + 6);
  }
  fclose(file);
  return 0;
}
int rados_conf_set(struct cluster *cluster, const char *name, const char *value) {
  (void)cluster;
  (void)value;
  return strcmp(name, "rbd_persistent_cache_mode") ? 0 : -ENOENT;
}
int rados_connect(struct cluster *cluster) { return -(int)control(cluster, "connect", NULL); }
void rados_shutdown(struct cluster *cluster) { free(cluster); }
int rados_cluster_fsid(struct cluster *cluster, char *to, size_t len) {
  (void)cluster;
  return snprintf(to, len, "0dd1f2c4-0000-4000-8000-000000000001");
}
uint64_t rados_get_instance_id(void *cluster) { return 4000 + (uintptr_t)cluster % 1000; }
int rados_blocklist_add(struct cluster *cluster, char *address, uint32_t seconds) {
  char path[320];
  snprintf(path, sizeof path, "%s/blocklist", cluster->dir);
  FILE *file = fopen(path, "a");
  if (!file) return -errno;
  fprintf(file, "%s %u\n", address, seconds);
  fclose(file);
  return 0;
}
int rados_wait_for_latest_osdmap(void *cluster) { (void)cluster; return 0; }
int rados_ioctx_create(struct cluster *cluster, const char *name, void **to) {
  char path[500];
  struct stat found;
  snprintf(path, sizeof path, "%s/%s", cluster->dir, name);
  if (stat(path, &found)) return -errno;
  struct pool *pool = calloc(1, sizeof *pool);
  pool->cluster = cluster;
  snprintf(pool->name, sizeof pool->name, "%s", name);
  *to = pool;
  return 0;
}
void rados_ioctx_destroy(struct pool *pool) { free(pool); }
int64_t rados_ioctx_get_id(struct pool *pool) { return 7 + (int64_t)strlen(pool->name); }
void rados_ioctx_set_namespace(struct pool *pool, const char *space) {
  snprintf(pool->space, sizeof pool->space, "%s", space);
}

void rbd_version(int *major, int *minor, int *extra) { *major = 1; *minor = 16; *extra = 0; }
static int open_image(struct pool *pool, const char *name, struct image **to, int writable) {
  struct image *image = calloc(1, sizeof *image);
  while (control(pool->cluster, "silent", NULL)) usleep(1000);
  snprintf(image->path, sizeof image->path, "%s/%s/%s%s%s", pool->cluster->dir, pool->name, pool->space,
           pool->space[0] ? "/" : "", name);
  snprintf(image->log, sizeof image->log, "%s.log", image->path);
  image->pool = pool;
  image->writable = writable;
  image->fd = open(image->path, writable ? O_RDWR : O_RDONLY);
  if (image->fd < 0) {
    int why = errno;
    free(image);
    return -why;
  }
  *to = image;
  return 0;
}
int rbd_open(struct pool *pool, const char *name, struct image **to, const char *snap) {
  return snap ? -EINVAL : open_image(pool, name, to, 1);
}
int rbd_open_read_only(struct pool *pool, const char *name, struct image **to, const char *snap) {
  return snap ? -EINVAL : open_image(pool, name, to, 0);
}
int rbd_close(struct image *image) {
  log_call(image, "close", 0, 0);
  close(image->fd);
  free(image);
  return 0;
}
int rbd_get_size(struct image *image, uint64_t *size) {
  struct stat found;
  if (fstat(image->fd, &found)) return -errno;
  *size = found.st_size;
  return 0;
}
int rbd_get_features(struct image *image, uint64_t *features) {
  long set = control(image->pool->cluster, "features", NULL);
  *features = set ? set : 61;
  return 0;
}
int rbd_get_id(struct image *image, char *id, size_t len) {
  struct stat found;
  if (fstat(image->fd, &found)) return -errno;
  snprintf(id, len, "%llx", (unsigned long long)found.st_ino);
  return 0;
}
struct option { char *name, *value; int source; };
int rbd_config_image_list(struct image *image, struct option *options, int *max) {
  if (*max < 2) return -ERANGE;
  options[0] = (struct option){strdup("rbd_cache"), strdup(control(image->pool->cluster, "cache", NULL) ? "true" : "false"), 0};
  options[1] = (struct option){strdup("rbd_other"), strdup("x"), 0};
  *max = 2;
  return 0;
}
void rbd_config_image_list_cleanup(struct option *options, int count) {
  for (int at = 0; at < count; at++) free(options[at].name), free(options[at].value);
}
int rbd_lock_acquire(struct image *image, int mode) {
  char owner[64];
  if (mode) return -EOPNOTSUPP;
  if (control(image->pool->cluster, "owner", owner) && control(image->pool->cluster, "connected", NULL)) return -EROFS;
  log_call(image, "lock", 0, 0);
  return 0;
}
int rbd_lock_get_owners(struct image *image, int *mode, char **owners, size_t *max) {
  char owner[64];
  if (!control(image->pool->cluster, "owner", owner)) return -ENOENT;
  if (*max < 1) return -ERANGE;
  *mode = 0;
  owners[0] = strdup(owner);
  *max = 1;
  return 0;
}
void rbd_lock_get_owners_cleanup(char **owners, size_t count) {
  for (size_t at = 0; at < count; at++) free(owners[at]);
}
struct watcher { char *address; int64_t id; uint64_t cookie; };
int rbd_watchers_list(struct image *image, struct watcher *watchers, size_t *max) {
  char owner[64];
  *max = 0;
  if (control(image->pool->cluster, "owner", owner) && control(image->pool->cluster, "connected", NULL)) {
    watchers[0] = (struct watcher){strdup(owner), 1, 1};
    *max = 1;
  }
  return 0;
}
void rbd_watchers_list_cleanup(struct watcher *watchers, size_t count) {
  for (size_t at = 0; at < count; at++) free(watchers[at].address);
}
/* Looks at the size a hundred times a second, as a notice of the cluster would tell it. */
static void *watch(void *of) {
  struct image *image = of;
  uint64_t before = image->size_before, now = 0;
  while (__atomic_load_n(&image->watching, __ATOMIC_ACQUIRE)) {
    usleep(10000);
    if (!rbd_get_size(image, &now) && now != before) {
      before = now;
      image->updated(image->updated_argument);
    }
  }
  return NULL;
}
int rbd_update_watch(struct image *image, uint64_t *number, void (*updated)(void *), void *argument) {
  image->updated = updated;
  image->updated_argument = argument;
  image->watching = 1;
  rbd_get_size(image, &image->size_before);
  *number = 1;
  return -pthread_create(&image->watcher, NULL, watch, image);
}
int rbd_update_unwatch(struct image *image, uint64_t number) {
  (void)number;
  __atomic_store_n(&image->watching, 0, __ATOMIC_RELEASE);
  pthread_join(image->watcher, NULL);
  return 0;
}
int rbd_diff_iterate2(struct image *image, const char *from, uint64_t offset, uint64_t len, uint8_t parent,
                      uint8_t whole, int (*tell)(uint64_t, size_t, int, void *), void *argument) {
  (void)parent;
  if (from || !whole) return -EINVAL;
  uint64_t end = offset + len;
  /* Objects of 64 KiB. */
  for (uint64_t at = offset; at < end;) {
    uint64_t next = (at / 65536 + 1) * 65536;
    if (next > end) next = end;
    off_t data = lseek(image->fd, (off_t)at, SEEK_DATA);
    if (data >= 0 && (uint64_t)data < next) {
      int told = tell(at, next - at, 1, argument);
      if (told < 0) return told;
    }
    at = next;
  }
  return 0;
}

int rbd_aio_create_completion(void *argument, callback call, void **to) {
  struct completion *completion = calloc(1, sizeof *completion);
  completion->call = call;
  completion->argument = argument;
  *to = completion;
  return 0;
}
ssize_t rbd_aio_get_return_value(struct completion *completion) { return completion->result; }
void rbd_aio_release(struct completion *completion) { free(completion); }

enum kind { READ, WRITE, FLUSH, ZERO };
struct job {
  struct image *image;
  enum kind kind;
  const struct iovec *iov;
  int count;
  uint64_t offset, len;
  struct completion *completion;
};
static void *carry_out(void *of) {
  struct job *job = of;
  struct cluster *cluster = job->image->pool->cluster;
  ssize_t result = 0;
  long fail, most, delay = control(cluster, "delay", NULL);
  if (delay) usleep(delay * 1000);
  while (control(cluster, "hold", NULL)) usleep(1000);
  if ((fail = control(cluster, "fail", NULL))) result = -fail;
  else switch (job->kind) {
    case READ:
      result = preadv(job->image->fd, job->iov, job->count, (off_t)job->offset);
      if ((most = control(cluster, "short", NULL)) && result > most) result = most;
      break;
    case WRITE:
      result = pwritev(job->image->fd, job->iov, job->count, (off_t)job->offset) < 0 ? -errno : 0;
      break;
    case ZERO:
      result = fallocate(job->image->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)job->offset, (off_t)job->len) ? -errno : 0;
      break;
    case FLUSH: break;
  }
  job->completion->result = result;
  if (!control(cluster, "lose", NULL)) job->completion->call(job->completion, job->completion->argument);
  free(job);
  return NULL;
}
static int start(struct image *image, enum kind kind, const struct iovec *iov, int count, uint64_t offset, uint64_t len, struct completion *completion) {
  static const char *names[] = {"read", "write", "flush", "zero"};
  long refuse = control(image->pool->cluster, "refuse", NULL);
  if (refuse) return -(int)refuse;
  for (int at = 0; at < count; at++) len += iov[at].iov_len;
  log_call(image, names[kind], offset, len);
  struct job *job = malloc(sizeof *job);
  *job = (struct job){image, kind, iov, count, offset, len, completion};
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 65536);
  int failed = pthread_create(&thread, &attributes, carry_out, job);
  pthread_attr_destroy(&attributes);
  if (failed) free(job);
  return -failed;
}
int rbd_aio_readv(struct image *image, const struct iovec *iov, int count, uint64_t offset, struct completion *completion) {
  return start(image, READ, iov, count, offset, 0, completion);
}
int rbd_aio_writev(struct image *image, const struct iovec *iov, int count, uint64_t offset, struct completion *completion) {
  return start(image, WRITE, iov, count, offset, 0, completion);
}
int rbd_aio_flush(struct image *image, struct completion *completion) {
  return start(image, FLUSH, NULL, 0, 0, 0, completion);
}
int rbd_aio_write_zeroes(struct image *image, uint64_t offset, size_t len, struct completion *completion, int thick, int flags) {
  (void)flags;
  log_call(image, thick ? "thick" : "thin", offset, len);
  return start(image, ZERO, NULL, 0, offset, len, completion);
}
