// Threads whose vector registers are live all the time: every register that the processor has holds a pattern of its own
// while a loop without a system call runs, and is compared afterwards.
#include <cpuid.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int done;
static atomic_long rounds;
static int bits;

#define EACH16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define EACH32(X) EACH16(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define LOAD512(n) "vmovdqu64 " #n "*64(%0), %%zmm" #n "\n"
#define STORE512(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%1)\n"
#define LOAD256(n) "vmovdqu " #n "*64(%0), %%ymm" #n "\n"
#define STORE256(n) "vmovdqu %%ymm" #n ", " #n "*64(%1)\n"
#define LOAD128(n) "movdqu " #n "*64(%0), %%xmm" #n "\n"
#define STORE128(n) "movdqu %%xmm" #n ", " #n "*64(%1)\n"
#define WAIT "mov %2, %%rcx\n1: dec %%rcx\njnz 1b\n"

__attribute__((target("avx512f,avx512bw"))) static void round_512(const void *in, void *out, const uint64_t *masks, uint64_t *masks_out) {
    __asm__ volatile("kmovq 8(%3), %%k1\nkmovq 16(%3), %%k2\nkmovq 24(%3), %%k7\n" EACH32(LOAD512) WAIT EACH32(STORE512)
                     "kmovq %%k1, 8(%4)\nkmovq %%k2, 16(%4)\nkmovq %%k7, 24(%4)\nvzeroupper\n"
                     : : "r"(in), "r"(out), "r"(3000000ul), "r"(masks), "r"(masks_out)
                     : "rcx", "memory", "k1", "k2", "k7", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",
                       "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
}

__attribute__((target("avx2"))) static void round_256(const void *in, void *out) {
    __asm__ volatile(EACH16(LOAD256) WAIT EACH16(STORE256) "vzeroupper\n"
                     : : "r"(in), "r"(out), "r"(3000000ul)
                     : "rcx", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

static void round_128(const void *in, void *out) {
    __asm__ volatile(EACH16(LOAD128) WAIT EACH16(STORE128)
                     : : "r"(in), "r"(out), "r"(3000000ul)
                     : "rcx", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

static void *work(void *argument) {
    static __thread uint64_t in[32 * 8], out[32 * 8], masks[8], masks_out[8];
    uint64_t seed = (uintptr_t)argument + 1;
    while (!done) {
        for (int n = 0; n < 32 * 8; n++) in[n] = seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        for (int n = 0; n < 8; n++) masks[n] = seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        memset(out, 0, sizeof out);
        int same;
        if (bits == 512) {
            round_512(in, out, masks, masks_out);
            same = !memcmp(in, out, sizeof in) && masks[1] == masks_out[1] && masks[2] == masks_out[2] && masks[3] == masks_out[3];
        } else {
            bits == 256 ? round_256(in, out) : round_128(in, out);
            same = 1;
            for (int n = 0; n < 16; n++) same &= !memcmp(in + n * 8, out + n * 8, bits / 8);
        }
        if (!same) {
            printf("FAULT: a vector register has changed\n");
            fflush(stdout);
            _exit(3);
        }
        rounds++;
    }
    return NULL;
}

int main(void) {
    int has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    bits = has_512 ? 512 : __builtin_cpu_supports("avx2") ? 256 : 128;
    pthread_t threads[3];
    for (uintptr_t n = 0; n < 3; n++) pthread_create(&threads[n], NULL, work, (void *)n);
    printf("ready %d\n", bits);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1) {
        long before = rounds;
        while (rounds < before + 6) usleep(1000);
        printf("alive\n");
        fflush(stdout);
    }
    done = 1;
    for (int n = 0; n < 3; n++) pthread_join(threads[n], NULL);
    printf("all registers kept\n");
    return 0;
}
