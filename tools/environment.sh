# SPDX-License-Identifier: Apache-2.0
# Sourced from the root of the tree by the other scripts: finds meson and sets what mpirun needs on a
# laptop or in a container (root, more ranks than cores: ranks must yield, one thread each).
# A value that is already set wins. Setting QUADRILLE_BUILD moves the build folder.

if [ -d .venv/bin ]; then PATH="$PWD/.venv/bin:$PATH"; fi
QUADRILLE_BUILD=${QUADRILLE_BUILD:-build}
export PATH QUADRILLE_BUILD
export OMPI_ALLOW_RUN_AS_ROOT=${OMPI_ALLOW_RUN_AS_ROOT:-1}
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}
export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe:-1}
export OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle:-1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
# One cache for several checkouts: the folder of a build is no part of what it compiles.
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}

configure_build() {  # configure once; ninja reconfigures by itself when a meson file changes
    if [ ! -f "$QUADRILLE_BUILD/build.ninja" ]; then meson setup "$QUADRILLE_BUILD" "$@"; fi
}
