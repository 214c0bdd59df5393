/* One layer for all rows, by all threads: scratch memory, the meeting of threads, and what ends a pass. */
#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attention.h"

typedef struct {
    const int64_t *tokens, *positions, *keep, *taps;
    int64_t rows, kept, tapped;
    bf16 *tap_out, *last_out;
    float *logits, *ranks;
    int64_t top;
    double *seconds;      /* by part: matmul, attention, head, other; NULL = not asked for */
    char *scratch;
    int64_t threads;
} Step;

static int64_t up(int64_t n) { return (n + 63) / 64 * 64; }

static int64_t widest(const Model *m) {
    int64_t k = m->layer[0].qkv.k, a = m->heads * m->dim;
    if (a > k) k = a;
    return m->inner > k ? m->inner : k;
}

/* Bytes one thread needs for itself: rounded rows, scales, one row, scores, queries, a row of the mask. */
static int64_t own_bytes(const Model *m, int64_t rows, int64_t keys) {
    int64_t k = widest(m);
    return up(rows * k * 2 + 256) + up(rows * k / 4) + up(k * 4) + up(QUERIES * (keys + 16) * 4) + up(QUERIES * m->dim * 2) + up(keys + 64)
         + up((keys + 16) * 4);
}

static int64_t shared_bytes(const Model *m, int64_t rows) {
    int64_t a = m->heads * m->dim, b = a + 2 * m->kv_heads * m->dim;
    return up(rows * m->hidden * 4) + up(rows * b * 4) + up(rows * a * 4) + up(rows * m->inner * 4) + up(rows * a * 2);
}

int64_t scratch_bytes(const Model *m, int64_t rows, int64_t keys, int64_t threads) {
    return shared_bytes(m, rows) + threads * own_bytes(m, rows, keys) + 64;
}

/* Where threads meet. They spin for as long as a fair share of work takes and then sleep: OpenMP's own barrier would go
 * on spinning, and when another program takes a core, keep the thread that is waited for from running at all. */
typedef struct { atomic_int arrived, phase, asleep; } Meeting;
#define SPINS 4000

static void meet(Meeting *at, int64_t all) {
    int phase = atomic_load(&at->phase);
    if (atomic_fetch_add(&at->arrived, 1) == all - 1) {
        atomic_store(&at->arrived, 0);
        atomic_store(&at->phase, phase + 1);
        if (atomic_load(&at->asleep)) syscall(SYS_futex, &at->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&at->phase, memory_order_acquire) != phase) return;
        _mm_pause();
    }
    atomic_fetch_add(&at->asleep, 1);
    while (atomic_load(&at->phase) == phase) syscall(SYS_futex, &at->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    atomic_fetch_sub(&at->asleep, 1);
}

static double lap(double *since, double *into) {
    double now = omp_get_wtime();
    if (into) *into += now - *since;
    return *since = now;
}

/* What all threads of a pass share. `taken`: attention units begun, by layer; a unit has up to `chunk` queries. */
typedef struct {
    const Model *m;
    const Store *kv;
    const Span *spans;
    const Step *step;
    int64_t n_spans, keys, chunk, units;
    float *x, *qkv, *attended, *inner;
    bf16 *q;
    char *own;
    atomic_long *taken;
    Meeting here;
} Pass;

/* What one thread has for itself. */
typedef struct {
    int64_t me, all;
    double *sec, since;
    Rows a;
    float *line, *score;
    bf16 *mine;
    uint8_t *vis;
    int32_t *rest;
} Worker;

/* Spans that share keys with span `i`, which begins their cluster: `*queries` of one key head in all, `*shared` keys.
 * Returns the span behind them. */
static int64_t cluster_of(const Pass *p, int64_t i, int64_t *queries, int64_t *shared) {
    int64_t rows = p->spans[i].rows;
    *shared = 0;
    while (++i < p->n_spans && p->spans[i].joined) rows += p->spans[i].rows, *shared = p->spans[i].joined;
    *queries = rows * (p->m->heads / p->m->kv_heads);
    return i;
}

/* `taken` has room for one number a layer. */
static Pass open_pass(const Model *m, const Store *kv, const Span *spans, int64_t n_spans, const Step *step, atomic_long *taken) {
    Pass p = {.m = m, .kv = kv, .spans = spans, .step = step, .n_spans = n_spans, .taken = taken};
    int64_t rows = step->rows, asked = 0;
    for (int64_t i = 0; i < n_spans; i++) {
        int64_t end = spans[i].prefix + spans[i].width;
        if (end > p.keys) p.keys = end;
        asked += spans[i].rows * m->heads;
    }
    p.chunk = asked / (step->threads * 4) + 1;   /* units small enough that every thread gets several */
    for (int64_t i = 0; i < n_spans; i++)
        if (spans[i].joined && p.chunk < TILE) p.chunk = TILE;   /* what they share is for whole tiles of queries */
    if (p.chunk > QUERIES) p.chunk = QUERIES;
    for (int64_t i = 0, n, shared; i < n_spans;) {
        i = cluster_of(&p, i, &n, &shared);
        p.units += m->kv_heads * ((n + p.chunk - 1) / p.chunk);
    }
    for (int64_t l = 0; l < m->layers; l++) atomic_init(taken + l, 0);
    char *at = (char *)(((uintptr_t)step->scratch + 63) & ~(uintptr_t)63);
    p.x = (float *)at; at += up(rows * m->hidden * 4);
    p.qkv = (float *)at; at += up(rows * (m->heads + 2 * m->kv_heads) * m->dim * 4);
    p.attended = (float *)at; at += up(rows * m->heads * m->dim * 4);
    p.inner = (float *)at; at += up(rows * m->inner * 4);
    p.q = (bf16 *)at; at += up(rows * m->heads * m->dim * 2);
    p.own = at;
    return p;
}

static Worker join_pass(const Pass *p) {
    int64_t rows = p->step->rows, wide = widest(p->m);
    Worker w = {.me = omp_get_thread_num(), .all = omp_get_num_threads(), .since = omp_get_wtime()};
    w.sec = w.me == 0 ? p->step->seconds : NULL;
    char *my = p->own + w.me * own_bytes(p->m, rows, p->keys);
    w.a = (Rows){(bf16 *)my, (uint8_t *)my, NULL};
    my += up(rows * wide * 2 + 256);
    w.a.scale = (float *)my; my += up(rows * wide / 4);
    w.line = (float *)my; my += up(wide * 4);
    w.score = (float *)my; my += up(QUERIES * (p->keys + 16) * 4);
    w.mine = (bf16 *)my; my += up(QUERIES * p->m->dim * 2);
    w.vis = (uint8_t *)my; my += up(p->keys + 64);
    w.rest = (int32_t *)my;
    return w;
}

/* Layer `l`, from the rounded rows `w->a` of its first product: adds to the rows `p->x`. */
static void run_layer(Pass *p, Worker *w, int64_t l) {
    const Model *m = p->m;
    const Layer *y = m->layer + l;
    const Step *step = p->step;
    int64_t rows = step->rows, dim = m->dim, heads = m->heads, kvh = m->kv_heads, hidden = m->hidden;
    int64_t qkv_n = (heads + 2 * kvh) * dim, me = w->me, all = w->all;
    linear(&y->qkv, &w->a, rows, STORE, p->qkv, qkv_n, me, all);
    meet(&p->here, all);
    if (w->sec) lap(&w->since, w->sec);
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t h = me; h < heads + 2 * kvh; h += all) {
            const Span *s = p->spans + i;
            for (int64_t r = 0; r < s->rows; r++) {
                int64_t row = s->start + r, t = s->prefix + s->width - s->rows + r;
                const float *c = m->cos + step->positions[row] * m->rotated, *sn = m->sin + step->positions[row] * m->rotated;
                float *v = p->qkv + row * qkv_n + h * dim;
                if (h < heads + kvh) {
                    const float *norm = h < heads ? y->norm_q : y->norm_k;
                    if (norm) norm_row(v, norm, m->eps, dim, v);
                    rotate(v, c, sn, m->rotated);
                }
                bf16 *to = h < heads ? p->q + (row * heads + h) * dim
                         : h < heads + kvh ? place(m, p->kv, s, 2 * l, h - heads, t)
                                           : place(m, p->kv, s, 2 * l + 1, h - heads - kvh, t);
                round_bf16(to, v, dim);
            }
        }
    meet(&p->here, all);
    for (int64_t u; (u = atomic_fetch_add(p->taken + l, 1)) < p->units;) {
        int64_t i, next = 0, left = u, n, shared, per;
        do {
            i = next, next = cluster_of(p, i, &n, &shared), per = (n + p->chunk - 1) / p->chunk;
        } while (left >= kvh * per && (left -= kvh * per, 1));
        int64_t first = left % per * p->chunk;
        attend(m, p->kv, p->spans + i, shared, l, left / per, first, n - first < p->chunk ? n - first : p->chunk, p->q,
               p->attended, w->score, w->mine, w->vis, w->rest);
    }
    meet(&p->here, all);
    if (w->sec) lap(&w->since, w->sec + 1);
    round_rows(&w->a, &y->out, rows, p->attended);
    linear(&y->out, &w->a, rows, ADD, p->x, hidden, me, all);
    meet(&p->here, all);
    if (w->sec) lap(&w->since, w->sec);
    for (int64_t r = 0; r < rows; r++) {
        norm_row(p->x + r * hidden, y->norm_mid, m->eps, hidden, w->line);
        round_row(&w->a, &y->gate_up, r, w->line);
    }
    if (w->sec) lap(&w->since, w->sec + 3);
    linear(&y->gate_up, &w->a, rows, GATE, p->inner, m->inner, me, all);
    meet(&p->here, all);
    round_rows(&w->a, &y->down, rows, p->inner);
    linear(&y->down, &w->a, rows, ADD, p->x, hidden, me, all);
    meet(&p->here, all);
    if (w->sec) lap(&w->since, w->sec);
}

/* A layer whose input is the normed row. */
static void plain_layer(Pass *p, Worker *w, int64_t l) {
    const Model *m = p->m;
    const Layer *y = m->layer + l;
    for (int64_t r = 0; r < p->step->rows; r++) {
        norm_row(p->x + r * m->hidden, y->norm_in, m->eps, m->hidden, w->line);
        round_row(&w->a, &y->qkv, r, w->line);
    }
    if (w->sec) lap(&w->since, w->sec + 3);
    run_layer(p, w, l);
}

/* Logits of the rows to keep, and their best ids. */
static void run_head(Pass *p, Worker *w) {
    const Model *m = p->m;
    const Step *step = p->step;
    for (int64_t r = 0; r < step->kept; r++) {
        norm_row(p->x + step->keep[r] * m->hidden, m->norm, m->eps, m->hidden, w->line);
        round_row(&w->a, &m->head, r, w->line);
    }
    linear(&m->head, &w->a, step->kept, STORE, step->logits, m->vocab, w->me, w->all);
    meet(&p->here, w->all);
    for (int64_t r = w->me; r < step->kept; r += w->all)
        rank(step->logits + r * m->vocab, m->vocab, step->top, step->ranks + r * (1 + 2 * step->top));
    if (w->sec) lap(&w->since, w->sec + 2);
}
