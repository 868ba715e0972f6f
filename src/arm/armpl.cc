// SPDX-License-Identifier: Apache-2.0
// A stand-in for libarmpl_lp64_mp.so of Arm's Performance Libraries, which MXNet's wheel for 64-bit
// Arm was linked with and which no package registry has.
//
// OpenBLAS has the same functions, and the wheel scipy-openblas32 contains it, but with names that
// begin with "scipy_": each function here jumps to one of them. gluon_roi/_arm.py loads both. The
// other two of Arm's libraries, libamath.so and libastring.so, have functions that glibc has as
// well, so their stand-ins are empty.
//
// To compare the list with the needs of a libmxnet.so (1.9.0 and 1.9.1 have the same):
//
//   nm -D --undefined-only libmxnet.so | grep -E ' U ((cblas|LAPACKE)_\w+|[sd]\w+_)$'
#define FORWARD(name) \
  __asm__(".globl " #name "\n.type " #name ", %function\n" #name ": b scipy_" #name);
#define LAPACKE(name) FORWARD(LAPACKE_s##name) FORWARD(LAPACKE_d##name)
#define LAPACK(name) FORWARD(s##name##_) FORWARD(d##name##_)

FORWARD(cblas_cgemm)
FORWARD(cblas_ddot)
FORWARD(cblas_dgemm)
FORWARD(cblas_dger)
FORWARD(cblas_dsyrk)
FORWARD(cblas_dtrmm)
FORWARD(cblas_dtrsm)
FORWARD(cblas_saxpy)
FORWARD(cblas_sdot)
FORWARD(cblas_sgemm)
FORWARD(cblas_sger)
FORWARD(cblas_ssyrk)
FORWARD(cblas_strmm)
FORWARD(cblas_strsm)
FORWARD(cblas_zgemm)
LAPACKE(geev)
LAPACKE(gelqf)
LAPACKE(gesdd)
LAPACKE(gesv)
LAPACKE(gesvd)
LAPACKE(getrf)
LAPACKE(getri)
LAPACKE(orglq)
LAPACKE(potrf)
LAPACKE(potri)
LAPACKE(syevd)
LAPACK(gels)
LAPACK(geqrf)
LAPACK(gesdd)
LAPACK(gesv)
LAPACK(getrf)
LAPACK(posv)
LAPACK(potrf)
