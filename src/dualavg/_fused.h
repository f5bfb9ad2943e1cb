// What the two halves of the fused kernel share: _fused_look.cpp fills it in, _fused.cpp works on it.
#pragma once
#include <cstdint>

struct Part {  // of the list of tensors, as Python hands it over
    void *x; const void *g; const void *x0; void *s; float* step; int64_t n; double decayed, lambda, pull, k;
};
