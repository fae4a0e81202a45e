// Rows of a table in the memory of a GPU: gathered into a batch, scattered to their slots, and changed by an optimizer. And
// a flat vector of parameters there: sums of gradients are added up, and an optimizer changes a piece of it.
//
// A slot holds a row: its values, then the first number that the optimizer keeps of each value, then the second. What is
// computed is what the optimizers of the host compute, to the last bit: each operation is rounded once, in the order that is
// written here. To be compiled without fused multiply-adds and without flushing of subnormals.
//
// Each thread takes the elements that its number and the number of threads give it: neighbours take neighbours, so that a row
// is read and written as a whole. `count * dim` is below 2^31. Where slots are written, each is listed once.
//
// The tests compile the same text for the processor of the host, with what `__CUDA_ARCH__` guards put in its place.

#define BLOCK 512

typedef unsigned int u32;
typedef unsigned long long u64;

struct Work {
    // The memory of all rows, [slots][stride].
    u64 rows;
    // Values of the rows that are worked on, [count][dim]; sums of their gradients for an update.
    u64 packed;
    // Rows that have no slot, [..][dim].
    u64 guests;
    // Slots of the rows, [count]. `slots` and more: the guest with what is above.
    u64 places;
    u32 count;
    u32 slots;
    u32 dim;
    u32 stride;
    float rate;
    float scale;
    float decay;
    float momentum;
    float along_gradient;
    float along_sum;
    float epsilon;
    float keep;
    float beta1;
    float rest1;
    float beta2;
    float rest2;
    float correction;
    float least;
};

#ifdef __CUDA_ARCH__
#define DEVICE __device__ __forceinline__
static DEVICE u32 first_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
static DEVICE u32 threads() { return gridDim.x * blockDim.x; }
#endif

static DEVICE void gather(const Work &work) {
    const float *rows = (const float *)work.rows;
    const float *guests = (const float *)work.guests;
    const u32 *places = (const u32 *)work.places;
    float *packed = (float *)work.packed;
    for (u32 at = first_thread(); at < work.count * work.dim; at += threads()) {
        u32 row = at / work.dim, column = at % work.dim, place = places[row];
        packed[at] = place < work.slots ? rows[(u64)place * work.stride + column]
                                        : guests[(u64)(place - work.slots) * work.dim + column];
    }
}

static DEVICE void scatter(const Work &work) {
    float *rows = (float *)work.rows;
    const u32 *places = (const u32 *)work.places;
    const float *packed = (const float *)work.packed;
    for (u32 at = first_thread(); at < work.count * work.dim; at += threads()) {
        u32 row = at / work.dim, column = at % work.dim;
        rows[(u64)places[row] * work.stride + column] = packed[at];
    }
}

// The optimizers. `first` and `second` are what is kept of the value; an optimizer touches only what it keeps.
struct Sgd {
    static DEVICE void step(const Work &work, float *value, float *, float *, float gradient) {
        *value = *value - work.rate * gradient;
    }
};

struct Momentum {
    static DEVICE void step(const Work &work, float *value, float *first, float *, float gradient) {
        float sum = work.momentum * *first + gradient;
        *first = sum;
        *value = *value - work.rate * (work.along_gradient * gradient + work.along_sum * sum);
    }
};

struct Adagrad {
    static DEVICE void step(const Work &work, float *value, float *first, float *, float gradient) {
        float sum = *first + gradient * gradient;
        *first = sum;
        *value = *value - work.rate * gradient / (sqrtf(sum) + work.epsilon);
    }
};

struct Adam {
    static DEVICE void step(const Work &work, float *value, float *first, float *second, float gradient) {
        float mean = work.beta1 * *first + work.rest1 * gradient;
        float square = work.beta2 * *second + work.rest2 * (gradient * gradient);
        *first = mean;
        *second = square;
        *value = work.keep * *value - work.rate * mean / (sqrtf(square) * work.correction + work.epsilon);
    }
};

template <typename Optimizer> static DEVICE void update(const Work &work) {
    float *rows = (float *)work.rows;
    const u32 *places = (const u32 *)work.places;
    const float *sums = (const float *)work.packed;
    for (u32 at = first_thread(); at < work.count * work.dim; at += threads()) {
        u32 row = at / work.dim, column = at % work.dim;
        float *value = rows + ((u64)places[row] * work.stride + column);
        float gradient = sums[at] * work.scale + work.decay * *value;
        Optimizer::step(work, value, value + work.dim, value + 2 * (u64)work.dim, gradient);
    }
}

// A piece of a flat vector. All values lie before the first numbers that the optimizer keeps, and those before the second;
// `stride` is the distance. `rows` is where the values of the piece begin, `packed` where their sums do.
template <typename Optimizer> static DEVICE void update_flat(const Work &work) {
    float *values = (float *)work.rows;
    const float *sums = (const float *)work.packed;
    for (u32 at = first_thread(); at < work.count; at += threads()) {
        float *value = values + at;
        float gradient = sums[at] * work.scale + work.decay * *value;
        Optimizer::step(work, value, value + work.stride, value + 2 * (u64)work.stride, gradient);
        // What decays becomes 0 before it is subnormal. A NaN stays.
        if (fabsf(*value) < work.least) *value = 0.0f;
    }
}

// The sums of statistics become their means, which replace the values.
static DEVICE void set_flat(const Work &work) {
    float *values = (float *)work.rows;
    const float *sums = (const float *)work.packed;
    for (u32 at = first_thread(); at < work.count; at += threads()) values[at] = sums[at] * work.scale;
}

static DEVICE void add_flat(const Work &work) {
    float *sums = (float *)work.rows;
    const float *values = (const float *)work.packed;
    for (u32 at = first_thread(); at < work.count; at += threads()) sums[at] = sums[at] + values[at];
}

// Strands that lie beside each other, and values of a strand.
#define LANES 16
#define STRAND 512

// The squares of each strand of the values at `packed` are added up, in their order; `count` strands, of `stride` values in
// all. The values lie in blocks of LANES times STRAND, in which each strand has every LANES-th one.
static DEVICE void squares_flat(const Work &work) {
    const float *values = (const float *)work.packed;
    double *sums = (double *)work.rows;
    for (u32 at = first_thread(); at < work.count; at += threads()) {
        u32 block = at / LANES * (LANES * STRAND);
        u32 end = work.stride - block < LANES * STRAND ? work.stride : block + LANES * STRAND;
        double sum = 0.0;
#pragma unroll 8
        for (u32 place = block + at % LANES; place < end; place += LANES) {
            sum = sum + (double)values[place] * (double)values[place];
        }
        sums[at] = sum;
    }
}

#ifdef __CUDA_ARCH__
#define KERNEL extern "C" __global__ void __launch_bounds__(BLOCK)
#endif

// One of them is compiled at a time, named by the options of the compiler.
#ifdef KERNEL_NAME
KERNEL KERNEL_NAME(const Work work) { KERNEL_BODY(work); }
#endif
