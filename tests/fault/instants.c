/* Send a signal before the n-th instruction of Python code: its handler runs at the interpreter's next check. */
#include <Python.h>
#include <pthread.h>

static long left;
static int number;

static int seen(PyObject *self, PyFrameObject *frame, int what, PyObject *arg)
{
    (void)self;
    (void)arg;
    if (what == PyTrace_CALL)
        return PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes", Py_True);
    if (what == PyTrace_OPCODE && left >= 0 && left-- == 0)
        PyErr_SetInterruptEx(number);
    return 0;
}

/* Not in a forked worker. */
static void forked(void)
{
    left = -1;
}

/* From now on, `signal` comes before the n-th instruction in later frames of the calling thread. */
void slipring_arm(int signal, long n)
{
    static int once;
    if (!once++)
        pthread_atfork(NULL, NULL, forked);
    number = signal;
    left = n;
    PyEval_SetTrace(seen, NULL);
}

/* Stop; return how many instructions were left: negative after the signal. */
long slipring_disarm(void)
{
    PyEval_SetTrace(NULL, NULL);
    return left;
}
