// A rank with a fixed amount of work: rounds over memory that all of it is written in. Prints a checksum that depends on every round.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: work ROUNDS MEBIBYTES\n");
        return 2;
    }
    long rounds = atol(words[1]);
    size_t cells = (size_t)atol(words[2]) << 17;
    uint64_t *memory = malloc(cells * sizeof *memory);
    if (memory == NULL) return 1;
    for (size_t cell = 0; cell < cells; cell++) memory[cell] = cell;
    uint64_t sum = 0;
    for (long round = 0; round < rounds; round++)
        for (size_t cell = 0; cell < cells; cell++) {
            uint64_t value = memory[cell] * 6364136223846793005u + 1442695040888963407u;
            memory[cell] = value ^ value >> 29;
            sum += memory[cell];
        }
    printf("checksum %016" PRIx64 "\n", sum);
    return 0;
}
