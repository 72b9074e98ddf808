/* Threads with one mapping: the thread sanitizer then finds every race of plain accesses. */
#define THREADS true
#include "stress_plans.h"
