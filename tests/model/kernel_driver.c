/* Runs the kernel on awkward shapes, on every instruction set of this machine. Built with the address and undefined
 * behaviour sanitizers, which end it at the first fault; every array is exactly as long as the kernel may touch.
 */
#include "kernel.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t seed = 1;

static float any(void) { /* in [-1, 1) */
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1.0f;
}

static float *filled(int64_t count, float scale) {
    float *values = malloc(sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++)
        values[i] = scale * any();
    return values;
}

static void require(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static int all_finite(const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return 0;
    return 1;
}

struct shape {
    int64_t layers, latent_layer, widths[7];
    int64_t records, batch_size, components;
};

static const struct shape SHAPES[] = {
    {2, 0, {1, 1, 1}, 1, 1, 1},
    {2, 0, {3, 2, 3}, 7, 100, 3},
    {4, 1, {17, 5, 1, 5, 17}, 23, 7, 16},
    {4, 1, {3, 100, 17, 100, 3}, 51, 50, 17},
    {6, 2, {14, 33, 64, 16, 64, 33, 14}, 104, 50, 200},
};

static void infer(const struct gca_inference *job, int64_t path) {
    const int64_t floats = gca_infer(job, path, 0);
    float *memory = aligned_alloc(64, sizeof(float) * (size_t)floats);
    require(gca_infer(job, path, memory) == floats, "inference");
    free(memory);
}

static void train(const struct shape *shape, int64_t path, int64_t objective, int with_anchor) {
    int64_t count = 0, *widths = malloc(sizeof(int64_t) * (size_t)(shape->layers + 1));
    for (int64_t l = 0; l <= shape->layers; l++)
        widths[l] = shape->widths[l];
    for (int64_t l = 0; l < shape->layers; l++)
        count += (widths[l] + 1) * widths[l + 1];
    const int64_t code = widths[shape->latent_layer + 1], epochs = 2;

    float *parameters = filled(count, 0.3f), *first = filled(count, 0.0f), *second = filled(count, 0.0f);
    float *anchor = with_anchor ? filled(count, 0.3f) : 0;
    float *samples = filled(shape->records * widths[0], 2.0f);
    float *centroids = filled(shape->components * code, 1.0f), *weights = filled(shape->components, 1.0f);
    int64_t *orders = malloc(sizeof(int64_t) * (size_t)(epochs * shape->records));
    for (int64_t i = 0; i < epochs * shape->records; i++)
        orders[i] = (i * 7 + i / shape->records) % shape->records;
    double rates[2] = {1e-3, 1e-4}, losses[2] = {-1.0, -1.0};

    struct gca_training job = {
        .model = {shape->layers, shape->latent_layer, widths},
        .parameters = parameters, .first_moment = first, .second_moment = second,
        .samples = samples, .orders = orders, .epochs = epochs, .records = shape->records,
        .batch_size = shape->batch_size, .learning_rates = rates, .losses = losses, .objective = objective,
        .centroids = centroids, .weights = weights, .components = shape->components, .anchor = anchor, .mu = 0.1,
    };
    const int64_t floats = gca_train(&job, path, 0);
    float *memory = aligned_alloc(64, sizeof(float) * (size_t)floats);
    for (int64_t i = 0; i < floats; i++)
        memory[i] = NAN; /* what lies in the work area must not matter */
    require(gca_train(&job, path, memory) == floats, "training");
    free(memory);
    require(isfinite(losses[0]) && isfinite(losses[1]), "finite losses");
    require(all_finite(parameters, count) && all_finite(first, count) && all_finite(second, count), "finite state");

    float *codes = filled(shape->records * code, 0.0f), *scores = filled(shape->records, 0.0f);
    struct gca_inference encode = {job.model, parameters, samples, shape->records, codes, 0};
    struct gca_inference score = {job.model, parameters, samples, shape->records, 0, scores};
    infer(&encode, path);
    infer(&score, path);
    require(all_finite(codes, shape->records * code) && all_finite(scores, shape->records), "finite codes and scores");

    free(widths), free(parameters), free(first), free(second), free(anchor), free(samples), free(centroids);
    free(weights), free(orders), free(codes), free(scores);
}

int main(void) {
    int ran = 0;
    for (int64_t path = GCA_AVX512; path <= GCA_BASELINE; path++)
        for (size_t i = 0; (gca_paths() >> path & 1) && i < sizeof SHAPES / sizeof *SHAPES; i++)
            for (int anchored = 0; anchored < 2; anchored++, ran += 2) {
                train(SHAPES + i, path, GCA_RECONSTRUCTION, anchored);
                train(SHAPES + i, path, GCA_ALIGNMENT, anchored);
            }
    printf("%d runs\n", ran);
    return 0;
}
