/* A rank that speaks PMI-1 as its arguments say, one step each:
 *   say:TEXT     sends a line; %r is the rank, %k the name of its keys, once it has heard that
 *   raw:COUNT    sends so many bytes without a newline
 *   flood:COUNT  asks so many times and reads nothing
 *   hear:TEXT    reads a line that begins so; else exit code 90
 *   map          maps the provider's file, as libfabric would
 *   load:FILE    maps FILE, as the loader maps a library
 *   network      opens an endpoint of the provider, which is loaded
 *   same:NAME    makes /dev/shm/NAME if it is not there, and maps it, as libraries do that share memory
 *   shm:NAME     makes /dev/shm/NAME%r and maps it, as libraries do
 *   env:NAME     prints a variable
 *   print:TEXT   prints a line
 *   made:FILE    makes FILE and the rank behind it
 *   wait:FILE    waits until FILE is there
 *   cwd          prints the working directory
 *   only:RANK    leaves the next step to that rank
 *   exit:CODE, signal:NUMBER, sleep:SECONDS
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int fd;
static const char *rank;
static char name[256];

static void send_all(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t sent = write(fd, text, length);
        if (sent <= 0)
            exit(91);
        text += sent;
        length -= (size_t)sent;
    }
}

static void say(const char *text)
{
    char line[8192];
    size_t at = 0;
    for (; *text && at < sizeof line - 16; text++) {
        if (text[0] == '%' && text[1] == 'r')
            at += (size_t)sprintf(line + at, "%s", rank), text++;
        else if (text[0] == '%' && text[1] == 'k')
            at += (size_t)sprintf(line + at, "%s", name), text++;
        else
            line[at++] = *text;
    }
    line[at++] = '\n';
    send_all(line, at);
}

static void hear(const char *start)
{
    char line[8192];
    size_t at = 0;
    while (at < sizeof line - 1 && read(fd, line + at, 1) == 1 && line[at] != '\n')
        at++;
    line[at] = 0;
    sscanf(line, "cmd=my_kvsname kvsname=%255s", name);
    if (strncmp(line, start, strlen(start)) != 0) {
        fprintf(stderr, "expected %s, heard %s\n", start, line);
        exit(90);
    }
}

static void load(const char *path)
{
    int file = open(path, O_RDONLY);
    if (file < 0 || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
        exit(92);
}

static void map(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libstillwire_fi.so", getenv("FI_PROVIDER_PATH"));
    load(path);
}

/* The parts of libfabric's interface that lead to an endpoint: fi_getinfo(3), fi_domain(3), fi_endpoint(3). */
struct operations {
    size_t size;
    int (*close)(void *);
    int (*bind)(void *, void *, uint64_t);
    int (*control)(void *, int, void *);
};
struct object {
    size_t class;
    void *context;
    struct operations *operations;
    struct makers {
        size_t size;
        int (*make[3])(void *, void *, void **, void *);
    } *makers;
};
struct provider {
    uint32_t version, fi_version;
    void *context[4];
    const char *name;
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const void *, void **);
    int (*fabric)(void *, void **, void *);
};
enum { DOMAIN = 0, AV = 0, CQ = 1, ENDPOINT = 2, ENABLE = 6, API = 1 << 16 | 20, SEND_RECV = 3 << 10 };

static void expect(int answer)
{
    if (answer != 0) {
        fprintf(stderr, "the provider answered %d\n", answer);
        exit(95);
    }
}

static void network(void)
{
    struct provider *(*init)(void) = (struct provider * (*)(void)) dlsym(dlopen(NULL, RTLD_NOW), "fi_prov_ini");
    struct provider *provider = init();
    void *info, *fabric, *domain, *av, *cq, *endpoint;
    expect(provider->getinfo(API, NULL, NULL, 0, NULL, &info));
    void *fabric_attributes = ((void **)info)[13];
    ((uint32_t *)fabric_attributes)[7] = API;
    expect(provider->fabric(fabric_attributes, &fabric, NULL));
    expect(((struct object *)fabric)->makers->make[DOMAIN](fabric, info, &domain, NULL));
    struct makers *makers = ((struct object *)domain)->makers;
    /* Completions with tags, and nothing that waits for them. */
    uint64_t queue_attributes[5] = {0, 0, 4};
    expect(makers->make[AV](domain, NULL, &av, NULL));
    expect(makers->make[CQ](domain, queue_attributes, &cq, NULL));
    expect(makers->make[ENDPOINT](domain, info, &endpoint, NULL));
    struct operations *operations = ((struct object *)endpoint)->operations;
    expect(operations->bind(endpoint, cq, SEND_RECV));
    expect(operations->bind(endpoint, av, 0));
    expect(operations->control(endpoint, ENABLE, NULL));
}

static void share(const char *name, const char *rank)
{
    char path[4096];
    snprintf(path, sizeof path, "/dev/shm/%s%s", name, rank);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, 4096) != 0 ||
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED)
        exit(94);
}

int main(int count, char **steps)
{
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    fd = atoi(getenv("PMI_FD"));
    rank = getenv("PMI_RANK");
    for (int at = 1; at < count; at++) {
        const char *step = steps[at], *rest = strchr(step, ':');
        rest = rest ? rest + 1 : "";
        if (strncmp(step, "only:", 5) == 0) {
            if (strcmp(rest, rank) != 0)
                at++;
        } else if (strncmp(step, "say:", 4) == 0) {
            say(rest);
        } else if (strncmp(step, "raw:", 4) == 0) {
            for (long left = atol(rest); left > 0; left--)
                send_all("x", 1);
        } else if (strncmp(step, "flood:", 6) == 0) {
            for (long left = atol(rest); left > 0; left--)
                say("cmd=get_maxes");
        } else if (strncmp(step, "hear:", 5) == 0) {
            hear(rest);
        } else if (strcmp(step, "map") == 0) {
            map();
        } else if (strncmp(step, "load:", 5) == 0) {
            load(rest);
        } else if (strcmp(step, "network") == 0) {
            network();
        } else if (strncmp(step, "shm:", 4) == 0) {
            share(rest, rank);
        } else if (strncmp(step, "same:", 5) == 0) {
            share(rest, "");
        } else if (strncmp(step, "env:", 4) == 0) {
            printf("%s=%s\n", rest, getenv(rest) ? getenv(rest) : "");
        } else if (strncmp(step, "print:", 6) == 0) {
            printf("%s\n", rest);
        } else if (strncmp(step, "made:", 5) == 0) {
            char path[4096];
            snprintf(path, sizeof path, "%s%s", rest, rank);
            fclose(fopen(path, "w"));
        } else if (strncmp(step, "wait:", 5) == 0) {
            while (access(rest, F_OK) != 0)
                usleep(5000);
        } else if (strcmp(step, "cwd") == 0) {
            char path[4096];
            printf("%s\n", getcwd(path, sizeof path));
        } else if (strncmp(step, "exit:", 5) == 0) {
            exit(atoi(rest));
        } else if (strncmp(step, "signal:", 7) == 0) {
            raise(atoi(rest));
        } else if (strncmp(step, "sleep:", 6) == 0) {
            sleep((unsigned)atoi(rest));
        } else {
            fprintf(stderr, "no such step: %s\n", step);
            return 93;
        }
    }
    return 0;
}
