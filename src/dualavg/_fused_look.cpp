// Looks at a step before it is taken: whether all that it needs is in order, and where it lies in memory. For a small
// network this would take longer in Python than the step itself; after a large one has swept the caches, Python would wait
// for its objects one by one.
#include "_fused.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

struct Span { uintptr_t from, to; bool written; };

// Whether nothing that is written lies in the memory of anything else, so that the order of elements is free.
bool are_apart(const Part* parts, int64_t count, int kind) {
    constexpr int64_t SIZES[][4] = {{4, 4, 4, 4}, {4, 4, 2, 4}, {2, 2, 2, 4}, {8, 8, 8, 8}};  // x, g, x0, s
    thread_local std::vector<Span> spans;
    spans.clear();
    for (int64_t i = 0; i < count; ++i) {
        const void* starts[] = {parts[i].x, parts[i].g, parts[i].x0, parts[i].s};
        for (int j = 0; j < 4 && parts[i].n; ++j) {
            const auto from = reinterpret_cast<uintptr_t>(starts[j]);
            spans.push_back({from, from + parts[i].n * SIZES[kind][j], j == 0 || j == 3});
        }
        const auto step = reinterpret_cast<uintptr_t>(parts[i].step);  // one counter for two would count twice
        if (step) spans.push_back({step, step + sizeof(float), true});
    }
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.from < b.from; });
    uintptr_t end = 0, end_of_written = 0;
    for (const Span& span : spans) {
        if (span.from < (span.written ? end : end_of_written)) return false;
        end = std::max(end, span.to);
        if (span.written) end_of_written = std::max(end_of_written, span.to);
    }
    return true;
}

// What torch's stable C functions say of a tensor. A handle of theirs is the address of a place that holds the
// address of the tensor's insides, which is what Python's `_cdata` is.
using Handle = void**;
struct Looks {
    int32_t (*data_ptr)(Handle, void**);
    int32_t (*dtype)(Handle, int32_t*);
    int32_t (*layout)(Handle, int32_t*);
    int32_t (*device_type)(Handle, int32_t*);
    int32_t (*dim)(Handle, int64_t*);
    int32_t (*sizes)(Handle, int64_t**);
    int32_t (*strides)(Handle, int64_t**);
    int32_t (*storage_size)(Handle, int64_t*);
    int32_t (*storage_offset)(Handle, int64_t*);
};
struct Codes { int32_t float32, bfloat16, float64, strided, cpu; };
Looks look;
Codes code;
bool introduced = false;

struct Seen { void* data; int32_t dtype; int64_t dim, n; const int64_t* sizes; };

// Whether a tensor is dense, on the CPU, and its elements lie one after the other, all in its storage.
bool see(void** cell, Seen* out) {
    int32_t layout, device;
    int64_t *sizes, *strides, bytes, offset;
    if (look.layout(cell, &layout) || layout != code.strided) return false;
    if (look.device_type(cell, &device) || device != code.cpu) return false;
    if (look.dtype(cell, &out->dtype) || look.dim(cell, &out->dim)) return false;
    if (look.sizes(cell, &sizes) || look.strides(cell, &strides)) return false;
    out->sizes = sizes;
    out->n = 1;
    for (int64_t d = 0; d < out->dim; ++d) out->n *= sizes[d];
    int64_t expected = 1;
    for (int64_t d = out->dim - 1; d >= 0 && out->n > 0; --d) {
        if (sizes[d] != 1 && strides[d] != expected) return false;
        expected *= sizes[d];
    }
    if (look.storage_size(cell, &bytes) || look.storage_offset(cell, &offset)) return false;
    const int64_t size = out->dtype == code.float32 ? 4 : out->dtype == code.float64 ? 8 : 2;
    if (out->n && (offset + out->n) * size > bytes) return false;
    return look.data_ptr(cell, &out->data) == 0 && (out->data || out->n == 0);  // no freed or imagined storage
}

bool alike(const Seen& a, const Seen& b) {
    return a.dim == b.dim && std::memcmp(a.sizes, b.sizes, sizeof(int64_t) * a.dim) == 0;
}

int kind_of(int32_t x, int32_t g, int32_t x0, int32_t s) {
    if (x != g) return -1;
    if (x == code.float64) return x0 == x && s == x ? 3 : -1;
    if (s != code.float32) return -1;
    if (x == code.float32) return x0 == x ? 0 : x0 == code.bfloat16 ? 1 : -1;
    return x == code.bfloat16 && x0 == x ? 2 : -1;
}

// Python's own functions, as the interpreter hands them over: no header is needed, and nothing to link with.
using Object = void*;
struct Python {
    int64_t (*list_size)(Object);
    Object (*list_item)(Object, int64_t);  // which the list goes on owning
    int (*append)(Object, Object);
    int64_t (*dict_size)(Object);
    Object (*dict_item)(Object, Object);  // which the dict goes on owning
    Object (*attribute)(Object, Object);
    Object (*call)(Object, ...);
    Object (*type)(Object);
    void* (*address)(Object);
    void (*hold)(Object);
    void (*let_go)(Object);
    Object (*error)();
};
struct Things { Object grad, cdata, x0, s, step, is_neg, none, no, tensor, parameter; };
Python py;
Things things;

// A network has swept it from the caches: ask for all before looking at any.
void soon(const void* object, int size = 64) {
    for (int j = 0; j < size; j += 48) __builtin_prefetch(static_cast<const char*>(object) + j);
}

// And what it points at in turn, near its beginning: storage, version, gradient. A wrong guess costs nothing.
void then(const void* insides) {
    for (int j = 2; j < 8; ++j) __builtin_prefetch(static_cast<void* const*>(insides)[j]);
}

bool is(Object object, Object a, Object b) {
    Object type = py.type(object);
    py.let_go(type);  // the object goes on owning it
    return type == a || type == b;
}

bool is_plain(Object tensor) {  // its numbers are what memory holds
    Object negative = py.call(things.is_neg, tensor, nullptr);
    if (negative) py.let_go(negative);
    return negative == things.no;
}

// What a list of parameters needs for its step. It holds what it finds while it looks, or has a list hold it: to ask for a
// tensor's hash is to run Python, and with it whoever waits for his turn.
class Collection {
  public:
    std::vector<void*> cells;  // five a parameter that has a gradient: x, g, x0, s, step

    Collection() = default;
    Collection(const Collection&) = delete;
    ~Collection() {
        for (Object object : held) py.let_go(object);
    }

    // Whether nothing is out of the ordinary so far; if not, there may be an error of Python's. The gradients go into
    // `grads`, the state into `kept`.
    bool collect(Object params, int64_t room, Object states, Object grads, Object kept) {
        return find(params, room, states) && find_gradients(grads, kept) && look_inside();
    }

  private:
    struct Found { Object p, g, state, x0, s, step; void* x; };
    std::vector<Found> found;
    std::vector<Object> held;

    Object keep(Object object) {
        if (object) {
            soon(object);
            py.hold(object);
            held.push_back(object);
        }
        return object;
    }

    static void* insides(Object tensor) {
        Object number = py.attribute(tensor, things.cdata);
        if (!number) return nullptr;
        void* address = py.address(number);
        py.let_go(number);
        if (address) soon(address, 256);
        return address;
    }

    bool find(Object params, int64_t room, Object states) {
        const int64_t all = py.list_size(params);
        if (all < 0 || all > room) return false;
        held.reserve(2 * all), found.reserve(all), cells.reserve(5 * all);
        for (int64_t i = 0; i < all; ++i) found.push_back({keep(py.list_item(params, i))});
        for (Found& f : found) {
            if (!is(f.p, things.tensor, things.parameter)) return false;
            f.state = keep(py.dict_item(states, f.p));
            if (!f.state && py.error()) return false;
            f.x = insides(f.p);
            if (!f.x) return false;
        }
        for (const Found& f : found) then(f.x);
        return true;
    }

    bool find_gradients(Object grads, Object kept) {
        size_t count = 0;
        for (Found& f : found) {
            f.g = py.attribute(f.p, things.grad);
            if (!f.g) return false;
            const bool taken = f.g == things.none || py.append(grads, f.g) == 0;
            py.let_go(f.g);  // the list goes on owning it
            if (f.g == things.none) continue;
            if (!taken || !f.state || py.dict_size(f.state) != 3) return false;
            f.x0 = py.dict_item(f.state, things.x0);
            f.s = py.dict_item(f.state, things.s);
            f.step = py.dict_item(f.state, things.step);
            for (Object tensor : {f.x0, f.s, f.step}) {
                if (!tensor || py.append(kept, tensor) != 0) return false;
                soon(tensor);
            }
            soon(f.g);
            found[count++] = f;
        }
        found.resize(count);
        return true;
    }

    bool look_inside() {
        for (const Found& f : found) {
            if (!is(f.g, things.tensor, nullptr)) return false;
            cells.push_back(f.x);
            for (Object tensor : {f.g, f.x0, f.s, f.step}) {
                cells.push_back(is(tensor, things.tensor, things.parameter) ? insides(tensor) : nullptr);
                if (!cells.back()) return false;
            }
        }
        for (void* cell : cells) then(cell);
        for (const Found& f : found) {
            if (!is_plain(f.p) || !is_plain(f.g) || !is_plain(f.x0) || !is_plain(f.s)) return false;
        }
        return true;
    }
};

}  // namespace

extern "C" void dualavg_introduce(void* const* looks, const int32_t* codes, void* const* python, void* const* known) {
    std::memcpy(&look, looks, sizeof look);
    std::memcpy(&code, codes, sizeof code);
    std::memcpy(&py, python, sizeof py);
    std::memcpy(&things, known, sizeof things);
    introduced = true;
}

// Look at the step of a list of parameters: fill in `parts`, and behind them the k + 1 of all, or NaN if there is not one.
// Changes no tensor. Returns what kind they are, or -1 if any is out of the ordinary. Whoever calls holds Python's lock,
// and looks whether Python has an error.
extern "C" int dualavg_prepare(Object params, int64_t room, Object states, Object grads, Object kept, Part* parts) {
    if (!introduced) return -1;
    Collection all;
    if (!all.collect(params, room, states, grads, kept)) return -1;
    const int64_t count = all.cells.size() / 5;
    int kind = count ? -1 : 0;
    for (int64_t i = 0; i < count; ++i) {
        void** cell = &all.cells[5 * i];
        Seen x, g, x0, s, step;
        if (!see(cell, &x) || !see(cell + 1, &g) || !see(cell + 2, &x0) || !see(cell + 3, &s)) return -1;
        if (!see(cell + 4, &step) || step.dtype != code.float32 || step.n != 1) return -1;
        if (!alike(x, g) || !alike(x, x0) || !alike(x, s)) return -1;
        const int here = kind_of(x.dtype, g.dtype, x0.dtype, s.dtype);
        if (here < 0 || (i && here != kind)) return -1;
        kind = here;
        parts[i] = Part{x.data, g.data, x0.data, s.data, static_cast<float*>(step.data), x.n, 0, 0, 0, 0};
        __builtin_prefetch(step.data);
    }
    double k = NAN;
    for (int64_t i = 0; i < count; ++i) {
        parts[i].k = double(*parts[i].step) + 1;
        k = i == 0 || k == parts[i].k ? parts[i].k : NAN;
    }
    std::memcpy(parts + count, &k, sizeof k);
    return are_apart(parts, count, kind) ? kind : -1;
}

extern "C" int dualavg_are_apart(const Part* parts, int64_t count, int kind) {
    return are_apart(parts, count, kind);
}
