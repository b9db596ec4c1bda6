/* A machine whose clock jumps and whose disk is slow or fails, for the processes that preload this library.
 *
 * FLOWCORE_MACHINE names a file with four numbers of 64 bits, which may change at any time: nanoseconds that
 * are added to the wall clock; bytes that the disk writes in a second (0: no limit); nanoseconds that each
 * write to the disk takes besides; and n, if one write in n to files below FLOWCORE_MACHINE_FOLDER fails with
 * EIO (0: none). Pipes, sockets and monotonic clocks are as they were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define STEP (20 * 1000000LL) /* A change is seen after this time. */
#define EPOCH 1000000000LL    /* Later times are of the wall clock, earlier ones since the machine's start. */

typedef int timed_wait(void *, void *, const struct timespec *);

struct machine {
  volatile int64_t clock;
  volatile int64_t rate;
  volatile int64_t latency;
  volatile int64_t fails_one_in;
  int64_t failed; /* Writes that have failed, counted by all processes. */
};

static struct machine untouched;
static struct machine *machine = &untouched;
static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;

static int (*real_gettime)(clockid_t, struct timespec *);
static timed_wait *real_timedwait, *real_cnd_timedwait;
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);

__attribute__((constructor)) static void set_up(void) {
  if (real_gettime != NULL) return;
  real_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (real_timedwait == NULL) real_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_cnd_timedwait = dlsym(RTLD_NEXT, "cnd_timedwait");
  real_write = dlsym(RTLD_NEXT, "write");
  real_writev = dlsym(RTLD_NEXT, "writev");
  real_pwrite = dlsym(RTLD_NEXT, "pwrite");
  real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  const char *name = getenv("FLOWCORE_MACHINE");
  int file = name == NULL ? -1 : open(name, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void *found = mmap(NULL, sizeof(struct machine), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (found != MAP_FAILED) machine = found;
}

static int64_t real_now(clockid_t clock) {
  struct timespec now;
  if (real_gettime == NULL) set_up();
  real_gettime(clock, &now);
  return now.tv_sec * SECOND + now.tv_nsec;
}

static struct timespec as_timespec(int64_t nanos) {
  return (struct timespec){.tv_sec = nanos / SECOND, .tv_nsec = nanos % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *found) {
  if (real_gettime == NULL) set_up();
  int failed = real_gettime(clock, found);
  if (failed == 0 && machine->clock != 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    *found = as_timespec(found->tv_sec * SECOND + found->tv_nsec + machine->clock);
  return failed;
}

int gettimeofday(struct timeval *found, void *zone) {
  (void)zone;
  int64_t now = real_now(CLOCK_REALTIME) + machine->clock;
  found->tv_sec = now / SECOND;
  found->tv_usec = now % SECOND / 1000;
  return 0;
}

time_t time(time_t *found) {
  time_t now = (real_now(CLOCK_REALTIME) + machine->clock) / SECOND;
  if (found != NULL) *found = now;
  return now;
}

/* A wait until a time of the wall clock ends when that clock gets there, also by a jump. */
static int wait_until(timed_wait *real, void *condition, void *mutex, const struct timespec *until, int late) {
  if (until->tv_sec < EPOCH) return real(condition, mutex, until);
  int64_t end = until->tv_sec * SECOND + until->tv_nsec;
  for (;;) {
    int64_t now = real_now(CLOCK_REALTIME), left = end - machine->clock - now;
    struct timespec step = as_timespec(left < 0 ? now : now + (left < STEP ? left : STEP));
    int found = real(condition, mutex, &step);
    if (found != late || left <= STEP) return found;
  }
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  if (real_timedwait == NULL) set_up();
  return wait_until(real_timedwait, condition, mutex, until, ETIMEDOUT);
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
  if (real_cnd_timedwait == NULL) set_up();
  return wait_until(real_cnd_timedwait, condition, mutex, until, thrd_timedout);
}

static void spend(int file, int64_t bytes) {
  struct stat found;
  if (machine->rate == 0 && machine->latency == 0) return;
  if (bytes <= 0 || fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) return;
  pthread_mutex_lock(&disk); /* One write after the other. */
  int64_t began = real_now(CLOCK_MONOTONIC);
  for (;;) {
    int64_t rate = machine->rate, due = machine->latency + (rate == 0 ? 0 : bytes * SECOND / rate);
    int64_t left = began + due - real_now(CLOCK_MONOTONIC);
    if (left <= 0) break;
    struct timespec step = as_timespec(left < STEP ? left : STEP);
    nanosleep(&step, NULL);
  }
  pthread_mutex_unlock(&disk);
}

static int fails(int file) {
  static int64_t writes;
  char link[64], path[4096];
  int64_t fails_one_in = machine->fails_one_in;
  if (fails_one_in == 0) return 0;
  const char *folder = getenv("FLOWCORE_MACHINE_FOLDER");
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (folder == NULL || size < 0) return 0;
  path[size] = '\0';
  size_t length = strlen(folder);
  if (strncmp(path, folder, length) != 0 || (path[length] != '/' && path[length] != '\0')) return 0;
  if (__atomic_add_fetch(&writes, 1, __ATOMIC_RELAXED) % fails_one_in != 0) return 0;
  __atomic_add_fetch(&machine->failed, 1, __ATOMIC_RELAXED);
  errno = EIO;
  return 1;
}

ssize_t write(int file, const void *bytes, size_t count) {
  if (real_write == NULL) set_up();
  if (fails(file)) return -1;
  ssize_t written = real_write(file, bytes, count);
  spend(file, written);
  return written;
}

ssize_t writev(int file, const struct iovec *parts, int count) {
  if (real_writev == NULL) set_up();
  if (fails(file)) return -1;
  ssize_t written = real_writev(file, parts, count);
  spend(file, written);
  return written;
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t place) {
  if (real_pwrite == NULL) set_up();
  if (fails(file)) return -1;
  ssize_t written = real_pwrite(file, bytes, count, place);
  spend(file, written);
  return written;
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off_t place) {
  return pwrite(file, bytes, count, place);
}
