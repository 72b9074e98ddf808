/* Processes, each with its inherited mapping. */
#define THREADS false
#include "stress_plans.h"
