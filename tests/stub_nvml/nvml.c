/* A stand-in for libnvidia-ml.so.1, as far as stepscope calls it: what its devices do is a function of time alone, so
 * that a test knows the truth. Compile: cc -shared -fPIC -O1 -o libnvidia-ml.so.1 nvml.c
 *
 * STUB_NVML_T0          file into which the library writes when its time began (nvmlInit), ns since the epoch
 * STUB_NVML_DEVICES     how many of the devices below there are (default 3)
 * STUB_NVML_SYSTEM_PIDS "1": the list of processes stays empty, as in a container
 * STUB_NVML_KEEP        "1": device 2 is not lost
 *
 * Power is 200 W in even and 400 W in odd seconds of that time, and the counter of energy its integral.
 *   device 0  has everything: GPM, both kinds of power, a counter of 32 bits that wraps after 1000 J (at 3.5 s)
 *   device 1  sensors that change every 250 ms only, no GPM, PCIe by nvmlDeviceGetPcieThroughput, no temperature
 *   device 2  like device 1, but its sensors are quick, its counter is set back to 0 at 3 s, and it is lost at 4.5 s
 *   others    like device 1, but quick
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
typedef int nvmlReturn_t;

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } value_t;
typedef struct { unsigned field, scope; long long ts, latency; unsigned type; nvmlReturn_t ret; value_t value; } field_t;
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
typedef struct { double at_s; int taken; } gpm_sample_t;
typedef struct { char *short_name, *long_name, *unit; } info_t;
typedef struct { unsigned id; nvmlReturn_t ret; double value; info_t info; } gpm_metric_t;
typedef struct { unsigned version, count; gpm_sample_t *one, *two; gpm_metric_t metrics[1]; } gpm_get_t;

static double t0_s = -1, t0_rest_s;
static int initialized;
static int handles[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (t0_s < 0) {
        const char *path = getenv("STUB_NVML_T0");
        FILE *file = path ? fopen(path, "w") : NULL;
        t0_s = t.tv_sec, t0_rest_s = t.tv_nsec / 1e9;
        if (file) fprintf(file, "%lld%09ld", (long long)t.tv_sec, t.tv_nsec), fclose(file);
    }
    return (t.tv_sec - t0_s) + (t.tv_nsec / 1e9 - t0_rest_s);
}

static unsigned devices(void) {
    const char *text = getenv("STUB_NVML_DEVICES");
    return text ? (unsigned)atoi(text) : 3;
}

static double power_w(double at) { return ((long long)floor(at)) % 2 == 0 ? 200.0 : 400.0; }

static double energy_j(double at) { /* 600 J every 2 s */
    double pairs = floor(at / 2), rest = at - 2 * pairs;
    return pairs * 600 + (rest < 1 ? rest * 200 : 200 + (rest - 1) * 400);
}

/* What the sensors of a device show at a moment: device 1 lags. The power of quick ones trembles, as real ones do. */
static double shown_at(int device, double at) { return device == 1 ? floor(at / 0.25) * 0.25 : at; }

static unsigned trembling_mw(int device, double at) {
    double step = device == 1 ? 0.25 : 0.02;
    return (unsigned)(power_w(shown_at(device, at)) * 1000) + (unsigned)((long long)floor(at / step) % 7);
}

#define DEVICE(handle) \
    int device = *(int *)(handle); \
    if (!initialized) return UNINITIALIZED; \
    double at = now_s(); \
    if (device == 2 && at > 4.5 && !getenv("STUB_NVML_KEEP")) return GPU_IS_LOST; \
    (void)device

nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; now_s(); initialized = 1; return SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { initialized = 0; return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == GPU_IS_LOST ? "GPU is lost" : "another error";
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "999.1"); return SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *n) { *n = devices(); return SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= devices()) return INVALID;
    *handle = &handles[index];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(void *h, char *text, unsigned n) { DEVICE(h); snprintf(text, n, "Stub GPU"); return SUCCESS; }
nvmlReturn_t nvmlDeviceGetUUID(void *h, char *text, unsigned n) { DEVICE(h); snprintf(text, n, "GPU-%d%d", device, device); return SUCCESS; }
nvmlReturn_t nvmlDeviceGetPciInfo_v3(void *h, pci_t *info) {
    DEVICE(h);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", device + 7);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *mw) { DEVICE(h); *mw = 700000; return SUCCESS; }
nvmlReturn_t nvmlDeviceGetMemoryInfo(void *h, memory_t *m) {
    DEVICE(h);
    m->total = 80ULL << 30, m->used = 2ULL << 30, m->free = 78ULL << 30;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(void *h, memory_v2_t *m) {
    DEVICE(h);
    if (device != 0) return NOT_SUPPORTED;
    m->total = 80ULL << 30, m->reserved = 1ULL << 30, m->used = 1ULL << 30, m->free = 78ULL << 30;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(void *h, uint64_t *mj) {
    DEVICE(h);
    double shown = shown_at(device, at);
    double joules = device == 2 && at >= 3 ? energy_j(shown) - energy_j(3) : energy_j(shown) + 5000;
    *mj = (uint64_t)(joules * 1000);
    if (device == 0) *mj = (uint32_t)((uint64_t)(energy_j(shown) * 1000) + 0x100000000ULL - 1000000);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { DEVICE(h); *mw = trembling_mw(device, at); return SUCCESS; }
nvmlReturn_t nvmlDeviceGetFieldValues(void *h, int n, field_t *fields) {
    DEVICE(h);
    for (int i = 0; i < n; i++) {
        field_t *f = &fields[i];
        f->ret = SUCCESS;
        f->type = 1;
        if (device == 0 && f->field == 185) f->value.ui = (unsigned)(power_w(at) * 1000);
        else if (device == 0 && f->field == 186) f->value.ui = trembling_mw(device, at);
        else if (device == 1 && f->field == 138 && f->scope == 0xFFFFFFFF) f->type = 3, f->value.ull = (unsigned long long)(at * 3e6);
        else if (device == 1 && f->field == 139 && f->scope == 0xFFFFFFFF) f->type = 3, f->value.ull = (unsigned long long)(at * 1e6);
        else f->ret = NOT_SUPPORTED;
    }
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetClockInfo(void *h, unsigned type, unsigned *mhz) {
    DEVICE(h);
    *mhz = type == 1 ? 1980 : type == 2 ? 2619 : 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(void *h, utilization_t *u) {
    DEVICE(h);
    u->gpu = power_w(at) > 300 ? 100 : 0, u->memory = 40;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperatureV(void *h, temperature_t *t) {
    DEVICE(h);
    if (device == 1) return NOT_SUPPORTED;
    t->temperature = 61;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTemperature(void *h, unsigned sensor, unsigned *t) {
    (void)sensor;
    DEVICE(h);
    if (device == 1) return NOT_SUPPORTED;
    *t = 61;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *mask) {
    DEVICE(h);
    *mask = device == 0 ? 0x24 : 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process_t *found) {
    DEVICE(h);
    if (getenv("STUB_NVML_SYSTEM_PIDS") || device == 2) { *n = 0; return SUCCESS; }
    if (found == NULL || *n < 1) { *n = 1; return INSUFFICIENT_SIZE; }
    memset(found, 0, sizeof *found);
    found->pid = 4711, *n = 1;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPcieThroughput(void *h, unsigned counter, unsigned *kb) {
    DEVICE(h);
    usleep(20000);
    *kb = counter == 0 ? 500 : 250;
    return SUCCESS;
}
nvmlReturn_t nvmlGpmQueryDeviceSupport(void *h, unsigned *support) { DEVICE(h); support[1] = device == 0; return SUCCESS; }
nvmlReturn_t nvmlGpmSampleAlloc(gpm_sample_t **sample) { *sample = calloc(1, sizeof **sample); return SUCCESS; }
nvmlReturn_t nvmlGpmSampleFree(gpm_sample_t *sample) { free(sample); return SUCCESS; }
nvmlReturn_t nvmlGpmSampleGet(void *h, gpm_sample_t *sample) {
    DEVICE(h);
    if (device != 0) return NOT_SUPPORTED;
    sample->at_s = at, sample->taken = 1;
    return SUCCESS;
}
/* Share of the time between two samples in which the device was busy, that is in an odd second. */
static double busy_share(double from, double to) {
    return to > from ? ((energy_j(to) - energy_j(from)) / (to - from) - 200) / 200 : 0;
}
nvmlReturn_t nvmlGpmMetricsGet(gpm_get_t *get) {
    if (get->version != 1 || !get->one->taken || !get->two->taken) return INVALID;
    double busy = busy_share(get->one->at_s, get->two->at_s);
    for (unsigned i = 0; i < get->count; i++) {
        gpm_metric_t *m = &get->metrics[i];
        m->ret = SUCCESS;
        switch (m->id) {
            case 2: m->value = busy * 90; break;
            case 5: m->value = busy * 50; break;
            case 10: m->value = busy * 70; break;
            case 11: m->value = 0; break;
            case 12: m->value = busy * 10; break;
            case 13: m->value = NAN; break;
            case 20: m->value = busy * 1024; break;
            case 21: m->value = busy * 2048; break;
            default: m->ret = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}
