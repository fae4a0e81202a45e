// Reductions of the memory of several GPUs or processes, element by element, in order of rank.
//
// What they compute is what `Element` in `element.rs` and `Weighed` in `weighted.rs` say, to the last bit: half types are widened to float, combined, and
// rounded once per combination, ties to even, and a NaN among their results is always the same one. To be compiled without
// fused multiply-adds and without flushing of subnormals.
//
// Each thread takes the vectors of 16 bytes of the range that its number and the number of threads give it; what is left
// at the end, shorter than a vector, is taken element by element by the first threads. The range begins at a multiple of 16
// bytes in every operand, or `vectors` is 0.
//
// The tests compile the same text for the processor of the host, with what `__CUDA_ARCH__` guards put in its place.

#define RANKS_MAX 64
#define BLOCK 512

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct Places {
    u64 from[RANKS_MAX];
    u64 into[RANKS_MAX];
    double weights[RANKS_MAX];
};

#ifdef __CUDA_ARCH__
#define DEVICE __device__ __forceinline__
static DEVICE u64 first_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
static DEVICE u64 threads() { return (u64)gridDim.x * blockDim.x; }
#endif

struct Vector {
    u32 words[4];
};

#ifdef __CUDA_ARCH__
// One access of 16 bytes.
static DEVICE Vector load(const void *from, u64 at) {
    uint4 v = ((const uint4 *)from)[at];
    Vector vector = {{v.x, v.y, v.z, v.w}};
    return vector;
}

static DEVICE void store(void *into, u64 at, Vector v) {
    ((uint4 *)into)[at] = make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]);
}

static DEVICE float widen_f16(u16 bits) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}

static DEVICE u16 round_to_f16(float wide) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(wide));
    return bits;
}

static DEVICE u32 bits_of(float wide) { return __float_as_uint(wide); }
static DEVICE float of_bits(u32 bits) { return __uint_as_float(bits); }
#endif

// The element types: `Wide` is what is computed with.
struct F32 {
    typedef float Store;
    typedef float Wide;
    static DEVICE Wide widen(Store a) { return a; }
    static DEVICE Store narrow(Wide a) { return a; }
};

struct F64 {
    typedef double Store;
    typedef double Wide;
    static DEVICE Wide widen(Store a) { return a; }
    static DEVICE Store narrow(Wide a) { return a; }
};

// Integers wrap around: they are added and multiplied without a sign.
struct I32 {
    typedef int Store;
    typedef int Wide;
    typedef u32 Unsigned;
    static DEVICE Wide widen(Store a) { return a; }
    static DEVICE Store narrow(Wide a) { return a; }
};

struct I64 {
    typedef i64 Store;
    typedef i64 Wide;
    typedef u64 Unsigned;
    static DEVICE Wide widen(Store a) { return a; }
    static DEVICE Store narrow(Wide a) { return a; }
};

struct U8 {
    typedef u8 Store;
    typedef u8 Wide;
    typedef u32 Unsigned;
    static DEVICE Wide widen(Store a) { return a; }
    static DEVICE Store narrow(Wide a) { return a; }
};

struct F16 {
    typedef u16 Store;
    typedef float Wide;
    static DEVICE Wide widen(Store a) { return widen_f16(a); }
    static DEVICE Store narrow(Wide a) { return a != a ? (u16)0x7e00 : round_to_f16(a); }
};

struct BF16 {
    typedef u16 Store;
    typedef float Wide;
    static DEVICE Wide widen(Store a) { return of_bits((u32)a << 16); }
    static DEVICE Store narrow(Wide a) {
        u32 bits = bits_of(a);
        // Half a unit of what stays, less one where what stays is even: ties round to even.
        return a != a ? (u16)0x7fc0 : (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
};

// The reductions. `finish` is applied once to the result of all ranks.
template <typename T> struct Sum {
    static DEVICE typename T::Wide combine(typename T::Wide a, typename T::Wide b) { return a + b; }
    static DEVICE typename T::Wide finish(typename T::Wide a, u32) { return a; }
};

template <typename T> struct WrappingSum {
    static DEVICE typename T::Wide combine(typename T::Wide a, typename T::Wide b) {
        return (typename T::Wide)((typename T::Unsigned)a + (typename T::Unsigned)b);
    }
    static DEVICE typename T::Wide finish(typename T::Wide a, u32) { return a; }
};

template <typename T> struct Prod {
    static DEVICE typename T::Wide combine(typename T::Wide a, typename T::Wide b) { return a * b; }
    static DEVICE typename T::Wide finish(typename T::Wide a, u32) { return a; }
};

template <typename T> struct WrappingProd {
    static DEVICE typename T::Wide combine(typename T::Wide a, typename T::Wide b) {
        return (typename T::Wide)((typename T::Unsigned)a * (typename T::Unsigned)b);
    }
    static DEVICE typename T::Wide finish(typename T::Wide a, u32) { return a; }
};

// A NaN on the left stays; one on the right is taken, as no comparison with it holds.
template <typename T> struct Min {
    static DEVICE typename T::Wide combine(typename T::Wide a, typename T::Wide b) {
        return a < b || a != a ? a : b;
    }
    static DEVICE typename T::Wide finish(typename T::Wide a, u32) { return a; }
};

template <typename T> struct Max {
    static DEVICE typename T::Wide combine(typename T::Wide a, typename T::Wide b) {
        return a > b || a != a ? a : b;
    }
    static DEVICE typename T::Wide finish(typename T::Wide a, u32) { return a; }
};

template <typename T> struct Mean {
    static DEVICE typename T::Wide combine(typename T::Wide a, typename T::Wide b) { return a + b; }
    static DEVICE typename T::Wide finish(typename T::Wide a, u32 world) { return a / (typename T::Wide)world; }
};

template <typename T, typename Op>
static DEVICE typename T::Store combined(typename T::Store a, typename T::Store b) {
    return T::narrow(Op::combine(T::widen(a), T::widen(b)));
}

template <typename T, typename Op>
static DEVICE typename T::Store finished(typename T::Store a, u32 world) {
    return T::narrow(Op::finish(T::widen(a), world));
}

// Loads of so many ranks are under way at once: one after the other would wait for each.
#define AHEAD 4

template <typename T, typename Op>
static DEVICE void reduce(const Places &places, u32 world, u32 targets, u64 vectors, u64 start, u64 len) {
    typedef typename T::Store Store;
    const u32 in_vector = 16 / sizeof(Store);
    union Lanes {
        Vector vector;
        Store lanes[in_vector];
    };
    for (u64 at = first_thread(); at < vectors; at += threads()) {
        Lanes total;
        total.vector = load((const void *)places.from[0], at + start * sizeof(Store) / 16);
        for (u32 rank = 1; rank < world; rank += AHEAD) {
            Lanes next[AHEAD];
#pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ahead++) {
                if (rank + ahead < world) {
                    next[ahead].vector = load((const void *)places.from[rank + ahead], at + start * sizeof(Store) / 16);
                }
            }
#pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ahead++) {
                if (rank + ahead < world) {
#pragma unroll
                    for (u32 lane = 0; lane < in_vector; lane++) {
                        total.lanes[lane] = combined<T, Op>(total.lanes[lane], next[ahead].lanes[lane]);
                    }
                }
            }
        }
#pragma unroll
        for (u32 lane = 0; lane < in_vector; lane++) {
            total.lanes[lane] = finished<T, Op>(total.lanes[lane], world);
        }
        for (u32 target = 0; target < targets; target++) {
            store((void *)places.into[target], at + start * sizeof(Store) / 16, total.vector);
        }
    }
    for (u64 at = vectors * in_vector + first_thread(); at < len; at += threads()) {
        Store total = ((const Store *)places.from[0])[start + at];
        for (u32 rank = 1; rank < world; rank++) {
            total = combined<T, Op>(total, ((const Store *)places.from[rank])[start + at]);
        }
        total = finished<T, Op>(total, world);
        for (u32 target = 0; target < targets; target++) {
            ((Store *)places.into[target])[start + at] = total;
        }
    }
}

// The mean of values of unequal weight: each product is rounded once, from double, and so is the quotient. Half types are added
// up as floats, and rounded once more at the end.
template <typename T> static DEVICE typename T::Wide weighed(typename T::Store value, double weight) {
    typedef typename T::Wide Wide;
    return weight == 0.0 ? (Wide)0.0 : (Wide)((double)T::widen(value) * weight);
}

template <typename T> static DEVICE typename T::Store divided(typename T::Wide sum, double total) {
    return T::narrow((typename T::Wide)((double)sum / total));
}

template <typename T>
static DEVICE void weighted_mean(
    const Places &places, u32 world, u32 targets, u64 vectors, u64 start, u64 len, double total
) {
    typedef typename T::Store Store;
    typedef typename T::Wide Wide;
    const u32 in_vector = 16 / sizeof(Store);
    union Lanes {
        Vector vector;
        Store lanes[in_vector];
    };
    for (u64 at = first_thread(); at < vectors; at += threads()) {
        Lanes first;
        first.vector = load((const void *)places.from[0], at + start * sizeof(Store) / 16);
        Wide sums[in_vector];
#pragma unroll
        for (u32 lane = 0; lane < in_vector; lane++) {
            sums[lane] = weighed<T>(first.lanes[lane], places.weights[0]);
        }
        for (u32 rank = 1; rank < world; rank += AHEAD) {
            Lanes next[AHEAD];
#pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ahead++) {
                if (rank + ahead < world) {
                    next[ahead].vector = load((const void *)places.from[rank + ahead], at + start * sizeof(Store) / 16);
                }
            }
#pragma unroll
            for (u32 ahead = 0; ahead < AHEAD; ahead++) {
                if (rank + ahead < world) {
                    double weight = places.weights[rank + ahead];
#pragma unroll
                    for (u32 lane = 0; lane < in_vector; lane++) {
                        sums[lane] += weighed<T>(next[ahead].lanes[lane], weight);
                    }
                }
            }
        }
        Lanes mean;
#pragma unroll
        for (u32 lane = 0; lane < in_vector; lane++) {
            mean.lanes[lane] = divided<T>(sums[lane], total);
        }
        for (u32 target = 0; target < targets; target++) {
            store((void *)places.into[target], at + start * sizeof(Store) / 16, mean.vector);
        }
    }
    for (u64 at = vectors * in_vector + first_thread(); at < len; at += threads()) {
        Wide sum = weighed<T>(((const Store *)places.from[0])[start + at], places.weights[0]);
        for (u32 rank = 1; rank < world; rank++) {
            sum += weighed<T>(((const Store *)places.from[rank])[start + at], places.weights[rank]);
        }
        for (u32 target = 0; target < targets; target++) {
            ((Store *)places.into[target])[start + at] = divided<T>(sum, total);
        }
    }
}

#ifdef __CUDA_ARCH__
#define KERNEL extern "C" __global__ void __launch_bounds__(BLOCK)
#endif

#define REDUCTION(name, type, op) \
    KERNEL name(const Places places, u32 world, u32 targets, u64 vectors, u64 start, u64 len) { \
        reduce<type, op<type> >(places, world, targets, vectors, start, len); \
    }

#define WEIGHTED_MEAN(name, type) \
    KERNEL name(const Places places, u32 world, u32 targets, u64 vectors, u64 start, u64 len, double total) { \
        weighted_mean<type>(places, world, targets, vectors, start, len, total); \
    }

// One of them is compiled at a time, named by the options of the compiler.
#ifdef REDUCTION_NAME
REDUCTION(REDUCTION_NAME, REDUCTION_TYPE, REDUCTION_OP)
#endif

#ifdef WEIGHTED_NAME
WEIGHTED_MEAN(WEIGHTED_NAME, WEIGHTED_TYPE)
#endif
