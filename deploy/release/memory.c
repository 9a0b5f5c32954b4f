// Compares memory, and on x86-64 also copies it, in place of the functions of musl.
//
// musl compares byte by byte: comparing a new log of 64 MB with zeros at a start took 100 ms. On
// x86-64 its memcpy is a single instruction of the processor, which takes long to start. Compile
// this file with -fno-builtin and -fno-tree-loop-distribute-patterns. Otherwise the compiler
// replaces the loops by calls of these same functions.
#include <stddef.h>
#include <stdint.h>

// These types may have any address, and may alias any other type.
typedef uint64_t __attribute__((aligned(1), may_alias)) word;
typedef uint32_t __attribute__((aligned(1), may_alias)) half;
typedef uint16_t __attribute__((aligned(1), may_alias)) quarter;
typedef long long __attribute__((vector_size(16), aligned(1), may_alias)) vector;

static int order(uint64_t left, uint64_t right) {
    // The first byte in memory decides. x86-64 and arm64 are little-endian.
    left = __builtin_bswap64(left);
    right = __builtin_bswap64(right);
    return (left > right) - (left < right);
}

int memcmp(const void *left, const void *right, size_t count) {
    const unsigned char *a = left, *b = right;
    for (; count >= 32; a += 32, b += 32, count -= 32) {
        const word *x = (const word *)a, *y = (const word *)b;
        if ((x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]) | (x[3] ^ y[3])) break;
    }
    for (; count >= 8; a += 8, b += 8, count -= 8) {
        uint64_t x = *(const word *)a, y = *(const word *)b;
        if (x != y) return order(x, y);
    }
    if (count >= 4) {
        uint32_t x = *(const half *)a, y = *(const half *)b;
        if (x != y) return order(x, y);
        a += 4, b += 4, count -= 4;
    }
    for (; count > 0; a++, b++, count--)
        if (*a != *b) return *a - *b;
    return 0;
}

int bcmp(const void *left, const void *right, size_t count) { return memcmp(left, right, count); }

#ifdef __x86_64__
void *memmove(void *to, const void *from, size_t count) {
    unsigned char *d = to;
    const unsigned char *s = from;
    // This reads all bytes before it writes the first one, so the areas may overlap.
    if (count <= 16) {
        if (count >= 8) {
            uint64_t first = *(const word *)s, last = *(const word *)(s + count - 8);
            *(word *)d = first;
            *(word *)(d + count - 8) = last;
        } else if (count >= 4) {
            uint32_t first = *(const half *)s, last = *(const half *)(s + count - 4);
            *(half *)d = first;
            *(half *)(d + count - 4) = last;
        } else if (count >= 2) {
            uint16_t first = *(const quarter *)s, last = *(const quarter *)(s + count - 2);
            *(quarter *)d = first;
            *(quarter *)(d + count - 2) = last;
        } else if (count == 1) {
            *d = *s;
        }
        return to;
    }
    vector first = *(const vector *)s, last = *(const vector *)(s + count - 16);
    if (count <= 32) {
        *(vector *)d = first;
        *(vector *)(d + count - 16) = last;
        return to;
    }
    if ((uintptr_t)d - (uintptr_t)s >= count) {
        // `to` is before `from`, or not before the end of the bytes to copy, so copying forwards is
        // safe. Aligned stores are faster.
        size_t done = 16 - ((uintptr_t)d & 15);
        for (; done + 64 <= count; done += 64) {
            const vector *x = (const vector *)(s + done);
            vector *y = (vector *)(d + done);
            vector a = x[0], b = x[1], c = x[2], e = x[3];
            y[0] = a, y[1] = b, y[2] = c, y[3] = e;
        }
        for (; done + 16 <= count; done += 16) *(vector *)(d + done) = *(const vector *)(s + done);
    } else {
        size_t left = count - 16;
        for (; left >= 32; left -= 32) {
            vector a = *(const vector *)(s + left - 16), b = *(const vector *)(s + left - 32);
            *(vector *)(d + left - 16) = a;
            *(vector *)(d + left - 32) = b;
        }
        if (left >= 16) *(vector *)(d + left - 16) = *(const vector *)(s + left - 16);
    }
    *(vector *)d = first;
    *(vector *)(d + count - 16) = last;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t count) { return memmove(to, from, count); }
#endif
