/*
 * A detector that watches a file: each line names a host that fails, and perhaps why. Another service writes it, such as one that reads the machine's logs.
 *
 *     cc -shared -fPIC -I include -o watch_file.so examples/components/watch_file.c
 *
 * detector-argument is the path of the file. The detector is asked every 500 ms, and suspects the first node whose host stands in the file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stillwire_component.h"

static int open_file(const struct stillwire_job *job, void **state) {
    if (job->argument[0] == '\0') {
        fprintf(stderr, "watch-file: detector-argument is empty; expected the path of a file\n");
        return 1;
    }
    *state = strdup(job->argument);
    return *state == NULL;
}

static void close_file(void *state) {
    free(state);
}

static int poll_file(void *state, const struct stillwire_nodes *nodes, struct stillwire_suspicion *suspicion) {
    FILE *file = fopen(state, "r");
    char line[256];
    int found = 0;
    if (file == NULL) {
        return 0;
    }
    while (!found && fgets(line, sizeof line, file) != NULL) {
        char *reason = line + strcspn(line, " \n");
        line[strcspn(line, "\n")] = '\0';
        if (*reason == ' ') {
            *reason++ = '\0';
        }
        for (uint32_t at = 0; at < nodes->count && !found; at++) {
            if (strcmp(nodes->nodes[at].host, line) == 0) {
                suspicion->node = nodes->nodes[at].node;
                snprintf(suspicion->reason, sizeof suspicion->reason, "%s", reason);
                found = 1;
            }
        }
    }
    fclose(file);
    return found;
}

static const struct stillwire_detector functions = {
    .size = sizeof functions,
    .period_ms = 500,
    .open = open_file,
    .close = close_file,
    .poll = poll_file,
};

static const struct stillwire_component component = {
    .size = sizeof component,
    .version = STILLWIRE_COMPONENT_VERSION,
    .kind = STILLWIRE_DETECTOR,
    .name = "watch-file",
    .functions = &functions,
};

const struct stillwire_component *stillwire_component(void) {
    return &component;
}
