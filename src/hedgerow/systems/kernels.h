/* Numbers of a row: bf16 and int8 vectors, matrix products over panels of weights, norms, rotation, ranking. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define PANEL 32          /* columns of a weight panel: two vectors */
#define TILE 12           /* rows of a register tile: 12 x 2 sums, 2 weights, 1 broadcast fit into 32 registers */
#define QUERIES 24        /* most queries of one attention unit: two register tiles share a block of keys */
#define AHEAD 16          /* steps along the inner dimension by which weights are fetched ahead */

typedef uint16_t bf16;
typedef __m512 vf;

enum { BF16, INT8 };
enum { STORE, ADD, GATE };

/* Weights [n, k] as panels [n/32][k/2][32][2] (bf16) or [n/32][k/4][32][4] (int8). int8 has, for every `group` inner
 * elements and column, a scale, and -128 times the sum of the weights (activations are stored with 128 added). */
typedef struct { int64_t kind, n, k, group; const void *w; const float *scale; const int32_t *comp; const float *bias; } Linear;

static inline vf widen(__m256i x) { return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }
static inline vf load_bf16(const bf16 *p) { return widen(_mm256_loadu_si256((const __m256i *)p)); }

static inline __m256i narrow(vf x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    __m512i b = (__m512i)x, odd = _mm512_and_epi32(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16));
#endif
}

/* sum + a.even * b.even + a.odd * b.odd over pairs of bf16 */
static inline vf dot_bf16(vf sum, __m512i a, __m512i b) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    sum = _mm512_fmadd_ps((vf)_mm512_and_epi32(a, high), (vf)_mm512_and_epi32(b, high), sum);
    return _mm512_fmadd_ps((vf)_mm512_slli_epi32(a, 16), (vf)_mm512_slli_epi32(b, 16), sum);
#endif
}

/* sum + four products of unsigned a and signed b */
static inline __m512i dot_int8(__m512i sum, __m512i a, __m512i b) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, a, b);
#else
    const __m512i even = _mm512_set1_epi16(0x00ff);
    __m512i ae = _mm512_and_si512(a, even), ao = _mm512_srli_epi16(a, 8);
    __m512i be = _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8), bo = _mm512_srai_epi16(b, 8);
    return _mm512_add_epi32(sum, _mm512_add_epi32(_mm512_madd_epi16(ae, be), _mm512_madd_epi16(ao, bo)));
#endif
}

/* e^x to 2 ulp for x <= 0, 0 below the range of floats */
static inline vf vexp(vf x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));
    vf n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    vf r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    vf y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(y, n);
}

/* ------------------------------------------------------------------------------------------------ matrix products */

#define UNROLL _Pragma("GCC unroll 16")
#define FETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)

#define BF16_TILE(R, V)                                                                                                \
    static void bf16_##R##_##V(const bf16 *a, int64_t lda, const bf16 *b, int64_t k, float *c, int64_t ldc) {          \
        vf sum[R][V];                                                                                                  \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < V; j++) sum[i][j] = _mm512_setzero_ps();                \
        for (int64_t t = 0; t < k / 2; t++, b += 32 * V) {                                                             \
            __m512i w[V];                                                                                              \
            UNROLL for (int j = 0; j < V; j++) { w[j] = _mm512_loadu_si512(b + 32 * j); FETCH(b + 32 * (V * AHEAD + j)); } \
            UNROLL for (int i = 0; i < R; i++) {                                                                       \
                __m512i x = _mm512_set1_epi32(*(const int32_t *)(a + i * lda + 2 * t));                                \
                UNROLL for (int j = 0; j < V; j++) sum[i][j] = dot_bf16(sum[i][j], x, w[j]);                           \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < V; j++) _mm512_storeu_ps(c + i * ldc + 16 * j, sum[i][j]); \
    }
/* Integer products of one group, begun at `begin`. */
#define INT8_TILE(R)                                                                                                   \
    static __attribute__((noinline)) void int8_##R(const uint8_t *a, int64_t lda, const int8_t *b, int64_t k,          \
                                                   const int32_t *begin, int32_t *c) {                                 \
        __m512i sum[R][2], z0 = _mm512_loadu_si512(begin), z1 = _mm512_loadu_si512(begin + 16);                        \
        UNROLL for (int i = 0; i < R; i++) { sum[i][0] = z0; sum[i][1] = z1; }                                         \
        for (int64_t t = 0; t < k / 4; t++, b += 128) {                                                                \
            __m512i w0 = _mm512_loadu_si512(b), w1 = _mm512_loadu_si512(b + 64);                                       \
            FETCH(b + 128 * AHEAD); FETCH(b + 128 * AHEAD + 64);                                                       \
            UNROLL for (int i = 0; i < R; i++) {                                                                       \
                __m512i x = _mm512_set1_epi32(*(const int32_t *)(a + i * lda + 4 * t));                                \
                sum[i][0] = dot_int8(sum[i][0], x, w0);                                                                \
                sum[i][1] = dot_int8(sum[i][1], x, w1);                                                                \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < R; i++) for (int j = 0; j < 2; j++) _mm512_storeu_si512(c + i * PANEL + 16 * j, sum[i][j]); \
    }
#define FOR_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define BOTH_WIDTHS(R) BF16_TILE(R, 1) BF16_TILE(R, 2)
FOR_ROWS(BOTH_WIDTHS)
FOR_ROWS(INT8_TILE)

static inline void tile_bf16(int64_t r, const bf16 *a, int64_t lda, const bf16 *b, int64_t k, float *c) {
#define CASE(R) case R: bf16_##R##_2(a, lda, b, k, c, PANEL); break;
    switch (r) { FOR_ROWS(CASE) }
#undef CASE
}
static inline void tile_scores(int64_t r, const bf16 *a, int64_t lda, const bf16 *b, int64_t k, float *c, int64_t ldc) {
#define CASE(R) case R: bf16_##R##_1(a, lda, b, k, c, ldc); break;
    switch (r) { FOR_ROWS(CASE) }
#undef CASE
}
/* Activations of all rows as a product wants them, one copy a thread. */
typedef struct { bf16 *half; uint8_t *byte; float *scale; } Rows;

static void round_bf16(bf16 *out, const float *x, int64_t k) {
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) _mm256_storeu_si256((__m256i *)(out + i), narrow(_mm512_loadu_ps(x + i)));
    if (i < k) {
        __mmask16 rest = (__mmask16)((1u << (k - i)) - 1);
        _mm256_mask_storeu_epi16(out + i, rest, narrow(_mm512_maskz_loadu_ps(rest, x + i)));
    }
}

/* Returns the scale: the largest value is 127 steps from zero, which is stored as 128. */
static float round_int8(uint8_t *out, const float *x, int64_t k) {
    vf most = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + LANES <= k; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    __mmask16 rest = (__mmask16)((1u << (k - i)) - 1);
    if (i < k) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(rest, x + i)));
    float high = _mm512_reduce_max_ps(most);
    vf by = _mm512_set1_ps(high > 0 ? 127.0f / high : 0.0f);
    const __m512i zero = _mm512_set1_epi32(128);
    for (i = 0; i + LANES <= k; i += LANES) {
        __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), by)), zero);
        _mm_storeu_si128((__m128i *)(out + i), _mm512_cvtepi32_epi8(q));
    }
    if (i < k) {
        __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(rest, x + i), by)), zero);
        _mm_mask_storeu_epi8(out + i, rest, _mm512_cvtepi32_epi8(q));
    }
    return high / 127.0f;
}

static void round_row(const Rows *to, const Linear *l, int64_t row, const float *x) {
    if (l->kind == BF16) { round_bf16(to->half + row * l->k, x, l->k); return; }
    int64_t groups = l->k / l->group;
    for (int64_t g = 0; g < groups; g++)
        to->scale[row * groups + g] = round_int8(to->byte + row * l->k + g * l->group, x + g * l->group, l->group);
}

static void round_rows(const Rows *to, const Linear *l, int64_t rows, const float *x) {
    for (int64_t r = 0; r < rows; r++) round_row(to, l, r, x + r * l->k);
}

/* One panel over all groups: integers within a group, then one scale a row, column and group. */
static void tile_int8(int64_t r, const Linear *l, int64_t panel, const Rows *x, int64_t row, float *out) {
    int64_t groups = l->k / l->group, wide = (l->n + PANEL - 1) / PANEL * PANEL;
    int32_t sum[TILE * PANEL] __attribute__((aligned(64)));
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *a = x->byte + row * l->k + g * l->group;
        const int8_t *b = (const int8_t *)l->w + (panel * l->k + g * l->group) * PANEL;
        const int32_t *comp = l->comp + g * wide + panel * PANEL;
        switch (r) {
#define CASE(R) case R: int8_##R(a, l->k, b, l->group, comp, sum); break;
            FOR_ROWS(CASE)
#undef CASE
        }
        const float *scale = l->scale + g * wide + panel * PANEL;
        vf s0 = _mm512_loadu_ps(scale), s1 = _mm512_loadu_ps(scale + 16);
        for (int64_t i = 0; i < r; i++) {
            float *y = out + i * PANEL;
            vf by = _mm512_set1_ps(x->scale[(row + i) * groups + g]);
            vf z0 = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sum + i * PANEL)), s0);
            vf z1 = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sum + i * PANEL + 16)), s1);
            _mm512_store_ps(y, g ? _mm512_fmadd_ps(z0, by, _mm512_load_ps(y)) : _mm512_mul_ps(z0, by));
            _mm512_store_ps(y + 16, g ? _mm512_fmadd_ps(z1, by, _mm512_load_ps(y + 16)) : _mm512_mul_ps(z1, by));
        }
    }
}

/* This thread's share of the columns of y = x w' + bias, put into `to` [rows, ld] as `how` says. */
static void linear(const Linear *l, const Rows *x, int64_t rows, int how, float *to, int64_t ld, int64_t me, int64_t all) {
    int64_t panels = (l->n + PANEL - 1) / PANEL;
    float out[TILE * PANEL] __attribute__((aligned(64)));
    for (int64_t p = panels * me / all; p < panels * (me + 1) / all; p++) {
        vf bias[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        if (l->bias) { bias[0] = _mm512_loadu_ps(l->bias + p * PANEL); bias[1] = _mm512_loadu_ps(l->bias + p * PANEL + 16); }
        int64_t tiles = (rows + TILE - 1) / TILE, row = 0;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t r = (rows - row + tiles - t - 1) / (tiles - t);
            if (l->kind == BF16) {
                tile_bf16(r, x->half + row * l->k, l->k, (const bf16 *)l->w + p * PANEL * l->k, l->k, out);
            } else {
                tile_int8(r, l, p, x, row, out);
            }
            for (int64_t i = 0; i < r; i++) {
                vf y0 = _mm512_add_ps(_mm512_load_ps(out + i * PANEL), bias[0]);
                vf y1 = _mm512_add_ps(_mm512_load_ps(out + i * PANEL + 16), bias[1]);
                float *at = to + (row + i) * ld;
                if (how == GATE) {        /* a panel is 16 columns of the gate beside the same 16 of up */
                    vf e = vexp(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(y0)));
                    vf one = _mm512_set1_ps(1.0f), s = _mm512_div_ps(one, _mm512_add_ps(one, e));
                    __mmask16 below = _mm512_cmp_ps_mask(y0, _mm512_setzero_ps(), _CMP_LT_OQ);
                    s = _mm512_mask_mul_ps(s, below, s, e);
                    int64_t left = ld - p * 16;
                    __mmask16 m = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
                    _mm512_mask_storeu_ps(at + p * 16, m, _mm512_mul_ps(_mm512_mul_ps(y0, s), y1));
                    continue;
                }
                int64_t left = l->n - p * PANEL;
                __mmask16 m0 = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
                __mmask16 m1 = left >= 32 ? 0xffff : left > 16 ? (__mmask16)((1u << (left - 16)) - 1) : 0;
                at += p * PANEL;
                if (how == ADD) {
                    y0 = _mm512_add_ps(y0, _mm512_maskz_loadu_ps(m0, at));
                    y1 = _mm512_add_ps(y1, _mm512_maskz_loadu_ps(m1, at + 16));
                }
                _mm512_mask_storeu_ps(at, m0, y0);
                _mm512_mask_storeu_ps(at + 16, m1, y1);
            }
            row += r;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ rows */

/* x / sqrt(mean x^2 + eps) * w */
static void norm_row(const float *x, const float *w, float eps, int64_t n, float *out) {
    vf sum = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) { vf v = _mm512_loadu_ps(x + i); sum = _mm512_fmadd_ps(v, v, sum); }
    float square = _mm512_reduce_add_ps(sum);
    for (; i < n; i++) square += x[i] * x[i];
    float by = 1.0f / sqrtf(square / (float)n + eps);
    for (i = 0; i + LANES <= n; i += LANES)
        _mm512_storeu_ps(out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(by)), _mm512_loadu_ps(w + i)));
    for (; i < n; i++) out[i] = x[i] * by * w[i];
}

/* Rotates pairs (i, i + rotated/2) of one head in place. */
static void rotate(float *x, const float *cos, const float *sin, int64_t rotated) {
    int64_t half = rotated / 2;
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

/* The k largest of n values, largest first, equal ones in order of index: out[0] is the first index, then k indices,
 * then k values. k = 0: the first index only. */
static void rank(const float *x, int64_t n, int64_t k, float *out) {
    int64_t want = k ? k : 1, have = 0;
    float value[want];
    int32_t index[want];
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 in = n - i >= LANES ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        vf v = _mm512_maskz_loadu_ps(in, x + i);
        __mmask16 better = in;
        if (have == want) better = _mm512_mask_cmp_ps_mask(in, v, _mm512_set1_ps(value[want - 1]), _CMP_GT_OQ);
        while (better) {
            int j = __builtin_ctz(better);
            better &= better - 1;
            float y = x[i + j];
            if (have == want && !(y > value[want - 1])) continue;
            int64_t at = have < want ? have++ : want - 1;
            for (; at && y > value[at - 1]; at--) { value[at] = value[at - 1]; index[at] = index[at - 1]; }
            value[at] = y;
            index[at] = (int32_t)(i + j);
        }
    }
    out[0] = (float)index[0];
    for (int64_t i = 0; i < k; i++) { out[1 + i] = (float)index[i]; out[1 + k + i] = value[i]; }
}
