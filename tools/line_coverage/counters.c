// Linked into each program and module that gcov measures: each has its own counters, which only it can write.
void __gcov_dump(void);
void __gcov_reset(void);
void write_at_exit(void (*write)(void)) __attribute__((weak)); // in exit.c, if that is preloaded

static void write_counters(void) {
    __gcov_dump();
    __gcov_reset(); // in the child of a vfork() they are those of the parent, which writes them again later
}

__attribute__((constructor)) static void begin(void) {
    if (write_at_exit)
        write_at_exit(write_counters);
}
