/* What the program counts behind its guards, pass by pass. */
enum { KINDS = 6 };
extern long behind_guard[KINDS];
long pass(int loops);
