// The kernels for the processor of this machine, as a program that has a memory of its own. Commands come over the standard
// input, in the order of the bytes of this machine; addresses are those of this process.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define DEVICE inline

// The thread of the grid that runs, and how many there are.
static unsigned thread_now, thread_count = 1;
static inline unsigned first_thread() { return thread_now; }
static inline unsigned threads() { return thread_count; }

#include "rows.cu"

static void take(void *into, size_t len) {
    if (len > 0 && fread(into, 1, len, stdin) != len) exit(3);
}

static u64 number() {
    u64 value;
    take(&value, sizeof value);
    return value;
}

static void give(const void *from, size_t len) {
    if (len > 0 && fwrite(from, 1, len, stdout) != len) exit(4);
    fflush(stdout);
}

static void (*const kernels[])(const Work &) = {
    gather, scatter, update<Sgd>, update<Momentum>, update<Adagrad>, update<Adam>,
    add_flat, set_flat, update_flat<Sgd>, update_flat<Momentum>, update_flat<Adagrad>, update_flat<Adam>,
    squares_flat,
};

int main() {
    for (int command = getchar(); command != EOF; command = getchar()) {
        u64 first = number();
        if (command == 'a') {
            // Zeroed, as the driver is asked for it.
            u64 address = (u64)calloc(first, 1);
            give(&address, sizeof address);
        } else if (command == 'f') {
            free((void *)first);
        } else if (command == 'w') {
            take((void *)first, number());
        } else if (command == 'c') {
            void *to = (void *)number();
            memcpy(to, (void *)first, number());
        } else if (command == 'r') {
            give((void *)first, number());
        } else if (command == 'k') {
            Work work;
            thread_count = (unsigned)number();
            take(&work, sizeof work);
            for (thread_now = 0; thread_now < thread_count; thread_now++) kernels[first](work);
        } else if (command == 'e') {
            give(&first, sizeof first);
        } else {
            return 2;
        }
    }
    return 0;
}
