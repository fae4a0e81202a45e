// The kernels for the processor of this machine: what their text leaves to a GPU, put in its place.
#include <cstring>

#define DEVICE inline
#define KERNEL extern "C" void

// The thread of the grid that runs, and how many there are.
static unsigned long long thread_now, thread_count = 1;
static inline unsigned long long first_thread() { return thread_now; }
static inline unsigned long long threads() { return thread_count; }

struct Vector;
static inline Vector load(const void *from, unsigned long long at);
static inline void store(void *into, unsigned long long at, Vector vector);

static inline float widen_f16(unsigned short bits) {
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return (float)half;
}

static inline unsigned short round_to_f16(float wide) {
    _Float16 half = (_Float16)wide;
    unsigned short bits;
    std::memcpy(&bits, &half, 2);
    return bits;
}

static inline unsigned int bits_of(float wide) {
    unsigned int bits;
    std::memcpy(&bits, &wide, 4);
    return bits;
}

static inline float of_bits(unsigned int bits) {
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

#include "kernels.cu"

static inline Vector load(const void *from, unsigned long long at) {
    Vector vector;
    std::memcpy(&vector, (const char *)from + 16 * at, 16);
    return vector;
}

static inline void store(void *into, unsigned long long at, Vector vector) {
    std::memcpy((char *)into + 16 * at, &vector, 16);
}

// All kernels, each run by all threads of the grid, one after the other.
#define ALL(name, type, op) \
    REDUCTION(thread_of_##name, type, op) \
    extern "C" void name(const Places *places, u32 world, u32 targets, u64 vectors, u64 start, u64 len, u64 grid) { \
        thread_count = grid; \
        for (thread_now = 0; thread_now < grid; thread_now++) \
            thread_of_##name(*places, world, targets, vectors, start, len); \
    }

#define FLOAT(name, type) \
    ALL(sum_##name, type, Sum) \
    ALL(min_##name, type, Min) \
    ALL(max_##name, type, Max) \
    ALL(prod_##name, type, Prod) \
    ALL(mean_##name, type, Mean)

#define INTEGER(name, type) \
    ALL(sum_##name, type, WrappingSum) \
    ALL(min_##name, type, Min) \
    ALL(max_##name, type, Max) \
    ALL(prod_##name, type, WrappingProd)

FLOAT(f32, F32)
FLOAT(f64, F64)
FLOAT(f16, F16)
FLOAT(bf16, BF16)
INTEGER(i32, I32)
INTEGER(i64, I64)
INTEGER(u8, U8)

#define WEIGHTED(name, type) \
    WEIGHTED_MEAN(thread_of_weighted_mean_##name, type) \
    extern "C" void weighted_mean_##name( \
        const Places *places, u32 world, u32 targets, u64 vectors, u64 start, u64 len, double total, u64 grid) { \
        thread_count = grid; \
        for (thread_now = 0; thread_now < grid; thread_now++) \
            thread_of_weighted_mean_##name(*places, world, targets, vectors, start, len, total); \
    }

WEIGHTED(f32, F32)
WEIGHTED(f64, F64)
WEIGHTED(f16, F16)
WEIGHTED(bf16, BF16)
