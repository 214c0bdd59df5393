/* The forward pass of an EAGLE-3 drafter: its first layer reads a token's embedding beside a feature of the target. */

/* `body` is a decoder over the target's embedding whose head is the draft vocabulary's and whose first q/k/v product is
 * over two rows: the embedding under the layer's own first norm, then the feature under `norm_feature`. `norm_taps`
 * [taps, target_hidden] (NULL: none): weights of one norm a tap, or, with `norm_whole`, of one over all taps. */
typedef struct {
    Model body;
    int64_t taps, target_hidden, norm_whole, normed_residual, normed_output;
    float embedding_scale;
    const float *norm_feature, *norm_taps;
    Linear fc;
} Drafter;

/* `features`, `hidden` [rows, hidden]; `law` [kept, 2]: the log of the sum of exponentials of a row's logits, and the
 * entropy of their softmax in nats. */
typedef struct { Step step; const float *features; float *hidden, *law; } HeadStep;

static void judge(const float *x, int64_t n, float *law) {
    vf most = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps(), weighed = sum;
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 in = n - i >= LANES ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        most = _mm512_max_ps(most, _mm512_mask_loadu_ps(most, in, x + i));
    }
    float high = _mm512_reduce_max_ps(most);
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 in = n - i >= LANES ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        vf below = _mm512_sub_ps(_mm512_maskz_loadu_ps(in, x + i), _mm512_set1_ps(high)), y = vexp(below);
        sum = _mm512_mask_add_ps(sum, in, sum, y);
        weighed = _mm512_mask3_fmadd_ps(y, below, weighed, in);
    }
    float total = _mm512_reduce_add_ps(sum), log_total = logf(total);
    law[0] = high + log_total;
    law[1] = log_total - _mm512_reduce_add_ps(weighed) / total;
}

/* The rounded input of the first layer, every thread for itself; the residual into `p->x`, shared out. */
static void open_rows(const Drafter *d, Pass *p, Worker *w, const float *features) {
    const Model *m = &d->body;
    const Layer *y = m->layer;
    const Step *step = p->step;
    int64_t hidden = m->hidden;
    for (int64_t r = 0; r < step->rows; r++)      /* the rows of the table lie far apart: ask for all of them first */
        for (int64_t i = 0; i < hidden; i += 32) FETCH(m->embedding + step->tokens[r] * hidden + i);
    vf by = _mm512_set1_ps(d->embedding_scale);
    for (int64_t r = 0; r < step->rows; r++) {
        const bf16 *e = m->embedding + step->tokens[r] * hidden;
        const float *g = features + r * hidden;
        float *normed = w->line + hidden;
        for (int64_t i = 0; i < hidden; i += LANES) _mm512_storeu_ps(w->line + i, _mm512_mul_ps(load_bf16(e + i), by));
        norm_row(w->line, y->norm_in, m->eps, hidden, w->line);
        norm_row(g, d->norm_feature, m->eps, hidden, normed);
        round_row(&w->a, &y->qkv, r, w->line);
        if (r % w->all == w->me) memcpy(p->x + r * hidden, d->normed_residual ? normed : g, hidden * sizeof(float));
    }
    if (w->sec) lap(&w->since, w->sec + 3);
}

void head_forward(const Drafter *d, const Store *kv, const Span *spans, int64_t n_spans, const HeadStep *head) {
    const Model *m = &d->body;
    const Step *step = &head->step;
    atomic_long taken[m->layers];
    Pass pass = open_pass(m, kv, spans, n_spans, step, taken), *p = &pass;

    #pragma omp parallel num_threads((int)step->threads)
    {
        Worker worker = join_pass(p), *w = &worker;
        open_rows(d, p, w, head->features);
        run_layer(p, w, 0);
        for (int64_t l = 1; l < m->layers; l++) plain_layer(p, w, l);
        for (int64_t r = w->me; r < step->rows; r += w->all) {
            const float *x = p->x + r * m->hidden;
            if (d->normed_output) norm_row(x, m->norm, m->eps, m->hidden, head->hidden + r * m->hidden);
            else memcpy(head->hidden + r * m->hidden, x, m->hidden * sizeof(float));
        }
        if (step->kept) run_head(p, w);           /* ends with each thread's own rows */
        for (int64_t r = w->me; r < step->kept; r += w->all) judge(step->logits + r * m->vocab, m->vocab, head->law + 2 * r);
    }
}

/* Features of rows from what the target tapped: tap t of row r at `taps + t * tap_step + r * row_step`, in bf16. */
int64_t fuse_bytes(const Drafter *d, int64_t rows, int64_t threads) {
    return threads * (up(rows * d->fc.k * 2 + 256) + up(rows * d->fc.k / 4) + up(d->fc.k * 4)) + 64;
}

void head_fuse(const Drafter *d, const bf16 *taps, int64_t tap_step, int64_t row_step, int64_t rows, float *out, char *scratch,
               int64_t threads) {
    int64_t wide = d->fc.k, each = d->target_hidden;
    char *at = (char *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);

    #pragma omp parallel num_threads((int)threads)
    {
        int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        char *my = at + me * (fuse_bytes(d, rows, 1) - 64);
        Rows a = {(bf16 *)my, (uint8_t *)my, NULL};
        my += up(rows * wide * 2 + 256);
        a.scale = (float *)my; my += up(rows * wide / 4);
        float *line = (float *)my;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t t = 0; t < d->taps; t++) {
                const bf16 *tap = taps + t * tap_step + r * row_step;
                float *to = line + t * each;
                for (int64_t i = 0; i < each; i += LANES) _mm512_storeu_ps(to + i, load_bf16(tap + i));
                if (d->norm_taps && !d->norm_whole) norm_row(to, d->norm_taps + t * each, d->body.eps, each, to);
            }
            if (d->norm_taps && d->norm_whole) norm_row(line, d->norm_taps, d->body.eps, wide, line);
            round_row(&a, &d->fc, r, line);
        }
        linear(&d->fc, &a, rows, STORE, out, d->body.hidden, me, all);
    }
}
