/*
 * A recovery protocol that prefers certain hosts in the place of a node, such as those of the same rack. The reaction itself is that of the job's policy.
 *
 *     cc -shared -fPIC -I include -o prefer_hosts.so examples/components/prefer_hosts.c
 *
 * recovery-argument is the beginning of the preferred hosts' names, such as `rack2-`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stillwire_component.h"

static int open_hosts(const struct stillwire_job *job, void **state) {
    *state = strdup(job->argument);
    return *state == NULL;
}

static void close_hosts(void *state) {
    free(state);
}

static int react(void *state, const struct stillwire_fault *fault, struct stillwire_reaction *reaction) {
    const char *beginning = state;
    for (uint32_t at = 0; at < fault->candidates_count; at++) {
        if (strncmp(fault->candidates[at].host, beginning, strlen(beginning)) == 0) {
            reaction->candidate = (int32_t)at;
            snprintf(reaction->reason, sizeof reaction->reason, "its name begins with %s", beginning);
            return 1;
        }
    }
    return 0;
}

static const struct stillwire_recovery functions = {
    .size = sizeof functions,
    .open = open_hosts,
    .close = close_hosts,
    .react = react,
};

static const struct stillwire_component component = {
    .size = sizeof component,
    .version = STILLWIRE_COMPONENT_VERSION,
    .kind = STILLWIRE_RECOVERY,
    .name = "prefer-hosts",
    .functions = &functions,
};

const struct stillwire_component *stillwire_component(void) {
    return &component;
}
