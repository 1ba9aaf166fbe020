/*
 * Components of Stillwire as dynamic libraries: a detector of faults, or a recovery protocol.
 *
 * A component is built with `cc -shared -fPIC`, links no library of Stillwire, and exports one function, stillwire_component(). Its path stands in the
 * file of `stillwire run --recovery FILE`; `stillwire recovery check FILE` loads and checks it. docs/guide/components.md has examples.
 *
 * Where it runs
 *   In a process of its own beside the launcher, with the launcher's environment, standard error and working directory. Standard input is empty, and
 *   standard output goes to standard error. All functions are called by one thread, one after another.
 *
 * Deadlines
 *   open() has 10 s, each other call 3 s. A component that crashes, exits, is late, or gives an answer that cannot be is reported once and ended. The
 *   built-in part decides then, for the rest of the job.
 *
 * Versions
 *   Each structure begins with its size in bytes. The writer of a structure sets it, the component for those that it returns. A component of another
 *   version, or with a structure of another size, is refused with both numbers.
 *
 * Memory
 *   Strings and structures that a function gets are valid during the call only. Strings are UTF-8, end with a zero byte, and are never NULL. What
 *   stillwire_component() returns must stay valid and unchanged.
 *
 * Licensed under MIT or Apache 2.0, at your choice.
 */
#ifndef STILLWIRE_COMPONENT_H
#define STILLWIRE_COMPONENT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. */
#define STILLWIRE_COMPONENT_VERSION 1u

/* Kinds of components. */
#define STILLWIRE_DETECTOR 1u
#define STILLWIRE_RECOVERY 2u

/* Bytes of a name or a reason, with the zero byte at its end. */
#define STILLWIRE_NAME_BYTES 64
#define STILLWIRE_REASON_BYTES 128

/* In the place of a rank, a node or a candidate: there is none. */
#define STILLWIRE_NONE (-1)

/* The answer of the built-in part holds: a model, or a protocol. */
#define STILLWIRE_BUILT_IN 0u

/* Models of faults. A detector may answer with PROCESS, REPEATED, TRANSIENT or PERMANENT. */
#define STILLWIRE_NETWORK 1u   /* ranks of a node and of others do not hear each other */
#define STILLWIRE_PROCESS 2u   /* a process is gone, its node is well */
#define STILLWIRE_REPEATED 3u  /* processes of one node are gone again and again */
#define STILLWIRE_TRANSIENT 4u /* a node does not answer, and may come back */
#define STILLWIRE_PERMANENT 5u /* a node is gone for good, or suspected to fail */

/* Recovery protocols. */
#define STILLWIRE_RESTART 1u   /* all ranks go back to the newest checkpoint, on the same nodes */
#define STILLWIRE_MIGRATION 2u /* the same, and another host takes the place of the node; without one: restart */
#define STILLWIRE_STOP 3u      /* the job ends, and its checkpoints stay; not for TRANSIENT */
#define STILLWIRE_IGNORE 4u    /* the job goes on without the rank that has ended; for PROCESS and REPEATED */

/* How sure a fault is. */
#define STILLWIRE_CERTAIN 1u   /* the kernel has reported the end of the process */
#define STILLWIRE_TIMED_OUT 2u /* a timeout has passed */
#define STILLWIRE_PERSON 3u    /* a person says so (`stillwire suspect`) */
#define STILLWIRE_COMPONENT 4u /* a detector that is a component says so */

/* Reports of monitors. A later Stillwire may add kinds without a new version. */
#define STILLWIRE_RANK_DIED 1u         /* a process ended that should not have: exit_code or signal */
#define STILLWIRE_RANK_NOT_STARTED 2u  /* a process could not be started or restored */
#define STILLWIRE_RANK_SILENT 3u       /* a rank has not answered for silent_ms */
#define STILLWIRE_RANK_HEARD 4u        /* it answers again */
#define STILLWIRE_NODE_OVERDUE 5u      /* nothing was heard of a node daemon for a while */
#define STILLWIRE_NODE_HEARD 6u        /* it is heard again */
#define STILLWIRE_NODE_SILENT 7u       /* a node is gone or cut off */
#define STILLWIRE_NODE_CUT_OFF 8u      /* its ranks and those of others have not heard each other for silent_ms */
#define STILLWIRE_NODE_SUSPECTED 9u    /* a person, or this component, says that it fails */
#define STILLWIRE_OTHER_REPORT 10u     /* about the job as a whole */

/* The job, when a component is opened. */
struct stillwire_job {
    uint32_t size;
    uint32_t ranks;
    uint32_t nodes;
    uint32_t reserved;    /* 0 */
    const char *job;      /* its id, as `stillwire ps` prints it; empty for `stillwire recovery check` */
    const char *argument; /* detector-argument or recovery-argument of the file; empty without one */
};

/* A node of the job, and the host on which it is now. */
struct stillwire_node {
    uint32_t size;
    uint32_t node;    /* from 0 */
    uint32_t ranks;   /* that it has */
    uint32_t answers; /* 1: its node daemon is connected */
    const char *host;
};

/* The job's nodes, in the order of their numbers. */
struct stillwire_nodes {
    uint32_t size;
    uint32_t count;
    uint64_t now_ms; /* milliseconds since the launcher started; the time of a suspended job does not count */
    const struct stillwire_node *nodes;
};

/* The report of a monitor. */
struct stillwire_report {
    uint32_t size;
    uint32_t kind;      /* STILLWIRE_RANK_DIED ... */
    uint64_t now_ms;    /* as in stillwire_nodes */
    uint64_t silent_ms; /* 0 if it is not about silence */
    int32_t rank;       /* or STILLWIRE_NONE */
    int32_t node;       /* or STILLWIRE_NONE */
    int32_t exit_code;  /* or STILLWIRE_NONE */
    int32_t signal;     /* or STILLWIRE_NONE */
    uint32_t model;     /* what the built-in detector takes it for; STILLWIRE_BUILT_IN: for no fault */
    uint32_t is_asked;  /* 1: the job waits for the answer; 0: the answer is ignored */
};

/* A suspicion that a node fails. size is set by Stillwire. */
struct stillwire_suspicion {
    uint32_t size;
    uint32_t node;
    char reason[STILLWIRE_REASON_BYTES]; /* for the user; may be empty */
};

/* A detector of faults. */
struct stillwire_detector {
    uint32_t size;
    uint32_t period_ms; /* time between two calls of poll(): 100 to 3600000 */

    /* Begins; *state is passed to all other functions. Returns 0, or another number: the component is refused with it. May be NULL. */
    int (*open)(const struct stillwire_job *job, void **state);
    /* Ends. It is not called for a component that has failed. May be NULL. */
    void (*close)(void *state);
    /* Returns the model of a fault, or STILLWIRE_BUILT_IN. May be NULL. */
    uint32_t (*report)(void *state, const struct stillwire_report *report);
    /*
     * Returns 1 and fills *suspicion if a node is failing, else 0. The reaction is that to a permanent fault, as for `stillwire suspect`: another
     * host takes the node's place. Nothing happens if nothing is saved yet or no host is free; then repeat the suspicion. May be NULL.
     */
    int (*poll)(void *state, const struct stillwire_nodes *nodes, struct stillwire_suspicion *suspicion);
};

/* A host that can take the place of a node. */
struct stillwire_candidate {
    uint32_t size;
    uint32_t ranks; /* ranks of the job that are there now; 0: a spare host */
    const char *host;
};

/* A fault of a node, and the reaction by the job's policy. */
struct stillwire_fault {
    uint32_t size;
    uint32_t model;      /* STILLWIRE_NETWORK ... */
    uint32_t confidence; /* STILLWIRE_CERTAIN ... */
    uint32_t protocol;   /* of the policy: STILLWIRE_RESTART ... */
    uint64_t now_ms;     /* as in stillwire_nodes */
    int32_t rank;        /* or STILLWIRE_NONE */
    uint32_t node;
    const char *host; /* of that node */
    uint32_t candidates_count;
    uint32_t reserved; /* 0 */
    const struct stillwire_candidate *candidates; /* in the order in which the built-in part takes them */
};

/* The answer of a recovery protocol. Stillwire fills it with "as built in". */
struct stillwire_reaction {
    uint32_t size;
    uint32_t protocol;  /* STILLWIRE_RESTART ..., or STILLWIRE_BUILT_IN */
    int32_t candidate;  /* index of the preferred host, or STILLWIRE_NONE; it also holds if the node is lost for good later */
    char reason[STILLWIRE_REASON_BYTES]; /* for the user; may be empty */
};

/* A recovery protocol. `--on-fault`, `--retries` and `--on-host-loss` bound its choice. */
struct stillwire_recovery {
    uint32_t size;
    uint32_t reserved; /* 0 */

    /* As for a detector. May be NULL. */
    int (*open)(const struct stillwire_job *job, void **state);
    void (*close)(void *state);
    /* Returns 0 for the reaction of the policy, or 1 and fills *reaction. */
    int (*react)(void *state, const struct stillwire_fault *fault, struct stillwire_reaction *reaction);
};

/* The description of a component. size and version have these places in every version. */
struct stillwire_component {
    uint32_t size;
    uint32_t version; /* STILLWIRE_COMPONENT_VERSION */
    uint32_t kind;    /* STILLWIRE_DETECTOR ... */
    uint32_t reserved; /* 0 */
    const char *name; /* for messages: letters, digits, `-`, `_` and `.`, at most STILLWIRE_NAME_BYTES with the zero byte */
    const void *functions; /* struct stillwire_detector or struct stillwire_recovery */
};

/* The component exports this function. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const struct stillwire_component *stillwire_component(void);

#ifdef __cplusplus
}
#endif

#endif
