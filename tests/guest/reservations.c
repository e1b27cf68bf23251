/* In the guest: the kernel's own persistent reservation calls (linux/pr.h) on a disk, as cluster managers
 * use them. The kernel makes NVMe commands or SCSI CDBs of them; what they come to is printed, and the
 * program ends with 0 only if the device did it.
 *   pr DEVICE register OLD NEW | ignore OLD NEW | reserve KEY TYPE | release KEY TYPE | clear KEY
 *   pr DEVICE preempt KEY VICTIM TYPE | preempt-abort KEY VICTIM TYPE
 * Keys are numbers as C writes them; TYPE is that of enum pr_type, 1 to 6. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <linux/pr.h>

static unsigned long long number(char **words, int at) { return words[at] ? strtoull(words[at], 0, 0) : 0; }

int main(int count, char **words) {
  if (count < 4) {
    fprintf(stderr, "usage: pr DEVICE CALL KEY...\n");
    return 2;
  }
  const char *call = words[2];
  unsigned long long one = number(words, 3), two = count > 4 ? number(words, 4) : 0;
  unsigned type = count > 5 ? (unsigned)number(words, 5) : 0;
  int device = open(words[1], O_RDWR | O_CLOEXEC), result;
  if (device < 0) {
    perror(words[1]);
    return 2;
  }
  if (!strcmp(call, "register") || !strcmp(call, "ignore")) {
    struct pr_registration what = {.old_key = one, .new_key = two};
    what.flags = call[0] == 'i' ? PR_FL_IGNORE_KEY : 0;
    result = ioctl(device, IOC_PR_REGISTER, &what);
  } else if (!strcmp(call, "reserve") || !strcmp(call, "release")) {
    struct pr_reservation what = {.key = one, .type = (unsigned)two};
    result = ioctl(device, call[2] == 's' ? IOC_PR_RESERVE : IOC_PR_RELEASE, &what);
  } else if (!strcmp(call, "clear")) {
    struct pr_clear what = {.key = one};
    result = ioctl(device, IOC_PR_CLEAR, &what);
  } else if (!strncmp(call, "preempt", 7)) {
    struct pr_preempt what = {.old_key = one, .new_key = two, .type = type};
    result = ioctl(device, call[7] ? IOC_PR_PREEMPT_ABORT : IOC_PR_PREEMPT, &what);
  } else {
    fprintf(stderr, "pr: no call %s\n", call);
    return 2;
  }
  /* Below zero: the kernel's error; above: the device's status. */
  if (result)
    printf("%s: %s\n", call, result < 0 ? strerror(errno) : "refused by the device");
  if (result > 0)
    printf("%s: status 0x%x\n", call, (unsigned)result);
  return result ? 1 : 0;
}
