/* A library that is preloaded into a member, and that delays its syncs. It delays fsync, fdatasync
 * and sync_file_range of files whose path starts with STALL_DIR. It delays msync with MS_SYNC for
 * all files, because it does not look up which file is mapped.
 *
 * STALL_DIR      a directory, with the path that the kernel shows. Only text is compared, so /a
 *                is also the start of /ab.
 * STALL_CONTROL  a control file: while it exists and is empty, no delayed sync begins; if it
 *                contains a number, each of these syncs takes this number of milliseconds longer
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Returns the number in the control file, 0 if the file is empty or has no number, or -1 if it
 * cannot be opened. */
static long control(void) {
    char text[32] = {0};
    const char *path = getenv("STALL_CONTROL");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? atol(text) : 0;
}

static void wait_for_control(void) {
    long delay_ms = control();
    if (delay_ms > 0) {
        usleep((useconds_t)delay_ms * 1000);
        return;
    }
    while (control() == 0) usleep(5000);
}

static void wait_for_file(int fd) {
    char link[64], path[PATH_MAX];
    const char *dir = getenv("STALL_DIR");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!dir || length < 0) return;
    path[length] = 0;
    if (strncmp(path, dir, strlen(dir)) == 0) wait_for_control();
}

#define REAL(name, ...)                                                \
    static int (*real)(__VA_ARGS__);                                   \
    if (!real) real = (int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

int fsync(int fd) {
    REAL(fsync, int);
    wait_for_file(fd);
    return real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync, int);
    wait_for_file(fd);
    return real(fd);
}

int sync_file_range(int fd, off_t offset, off_t length, unsigned int flags) {
    REAL(sync_file_range, int, off_t, off_t, unsigned int);
    wait_for_file(fd);
    return real(fd, offset, length, flags);
}

int msync(void *start, size_t length, int flags) {
    REAL(msync, void *, size_t, int);
    if (flags & MS_SYNC) wait_for_control();
    return real(start, length, flags);
}
