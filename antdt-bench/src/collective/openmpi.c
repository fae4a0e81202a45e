/* One rank of Open MPI. Takes orders from a socket and sleeps in between.
 *
 * usage: openmpi HOST PORT   (started by mpirun) */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <mpi.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Seconds that one order may take. A rank whose peers are gone would wait for ever. */
enum { LIMIT = 60, REPETITIONS_MAX = 64 };

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static long long status(const char *field) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) sscanf(line + strlen(field), "%lld", &kib);
    if (file) fclose(file);
    return kib * 1024;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT);
    MPI_Init(&count, &arguments);
    int rank, world;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[2]))};
    if (inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1) return 2;
    int control = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (connect(control, (struct sockaddr *)&address, sizeof address)) return perror("connect"), 1;
    setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    MPI_Barrier(MPI_COMM_WORLD);
    FILE *orders = fdopen(control, "r");
    dprintf(control, "{\"rank\": %d, \"pid\": %d}\n", rank, (int)getpid());

    char line[256], kind[16];
    float *data = NULL;
    long long bytes = 0;
    size_t len = 0;
    double slept = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    alarm(0);
    while (fgets(line, sizeof line, orders)) {
        int calls, repetitions, warm;
        double idle = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - slept;
        alarm(LIMIT);
        if (sscanf(line, "prepare %15s %lld", kind, &bytes) == 2) {
            free(data);
            len = (size_t)bytes / sizeof *data;
            data = malloc(len * sizeof *data);
            if (!data) return perror("malloc"), 1;
            for (size_t i = 0; i < len; i++) data[i] = (float)(i % 251 + (size_t)rank + 1);
            FILE *refs = fopen("/proc/self/clear_refs", "w");
            if (refs) fputs("5", refs), fclose(refs);
            long long before = status("VmRSS:"), shared = status("RssShmem:");
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Allreduce(MPI_IN_PLACE, data, (int)len, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            long long peak = status("VmHWM:");
            shared = status("RssShmem:") - shared;
            size_t wrong = 0, all = (size_t)world;
            for (size_t i = 0; i < len; i++) wrong += data[i] != (float)(all * (i % 251) + all * (all + 1) / 2);
            if (wrong) dprintf(control, "{\"error\": \"%zu sums are wrong\"}\n", wrong);
            else dprintf(control, "{\"before\": %lld, \"peak\": %lld, \"shared\": %lld}\n", before, peak, shared);
        } else if (sscanf(line, "time %15s %d %d %d", kind, &calls, &repetitions, &warm) == 4 && data
                   && repetitions <= REPETITIONS_MAX) {
            double took[REPETITIONS_MAX], cpu = 0;
            int wrong = 0;
            /* Sums of zeros stay zeros, however often they are summed. */
            float fill = calls == 1 ? 1 : 0;
            for (int repetition = -warm; repetition < repetitions; repetition++) {
                for (size_t i = 0; i < len; i++) data[i] = fill;
                MPI_Barrier(MPI_COMM_WORLD);
                double cpu_before = seconds_of(CLOCK_PROCESS_CPUTIME_ID), began = seconds_of(CLOCK_MONOTONIC);
                for (int call = 0; call < calls; call++)
                    MPI_Allreduce(MPI_IN_PLACE, data, (int)len, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                double ended = seconds_of(CLOCK_MONOTONIC), used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
                if (repetition >= 0) took[repetition] = (ended - began) / calls, cpu += used;
                wrong |= data[0] != fill * (float)world || data[len - 1] != fill * (float)world;
            }
            if (wrong) {
                dprintf(control, "{\"error\": \"a sum is wrong\"}\n");
            } else {
                dprintf(control, "{\"seconds\": [");
                for (int i = 0; i < repetitions; i++) dprintf(control, "%s%.9f", i ? ", " : "", took[i]);
                dprintf(control, "], \"cpu_s\": %.9f, \"idle_cpu_s\": %.9f}\n", cpu / calls / repetitions, idle);
            }
        } else {
            dprintf(control, "{\"error\": \"Open MPI knows no such order\"}\n");
        }
        alarm(0);
        slept = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    }
    /* Nobody gives orders any more. The others may be gone already. */
    alarm(5);
    MPI_Finalize();
    return 0;
}
