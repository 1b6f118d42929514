// A library that is loaded and unloaded.
#include <sys/sdt.h>

void plugged(int i) { DTRACE_PROBE1(plug, plugged, i); }
