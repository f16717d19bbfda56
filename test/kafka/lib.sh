# Shared by the scripts of this directory; sourced, never run.
# shellcheck shell=bash disable=SC2034 # the scripts use what it sets

KAFKA_VERSION=${KAFKA_VERSION:-4.4.0}
kafka_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kafka_repo=$(cd "$kafka_here/../.." && pwd)
kafka_cache=${JOINER_CACHE:-${HOME:-/root}/.cache/joiner}/kafka-$KAFKA_VERSION
kafka_default_dir=$kafka_repo/.cache/kafka
kafka_started=$(date +%s%N)

# say MESSAGE: progress on standard error, with the seconds since the start.
say() {
	local ms=$((($(date +%s%N) - kafka_started) / 1000000))
	printf '%s: %s (%d.%01d s)\n' "${0##*/}" "$*" $((ms / 1000)) $((ms % 1000 / 100)) >&2
}

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

usage_error() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 2
}

# java_major JAVA: the feature release of a Java executable, 0 where it does not run.
java_major() {
	local version
	version=$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1) || true
	echo "${version:-0}"
}

# find_java: a Java that Kafka's brokers run on (17 or newer).
find_java() {
	local java
	for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
		if [[ -x $java ]] && (($(java_major "$java") >= 17)); then
			echo "$java"
			return 0
		fi
	done
	return 1
}

# need_java: sets JAVA, installing one where none will do.
need_java() {
	JAVA=$(find_java) && return 0
	"$kafka_repo/test/install" java
	JAVA=$(find_java) || die "no Java 17 or newer found"
}

# need_jars: sets KAFKA_CLASSPATH (tools) and BROKER_CLASSPATH, fetching the jars
# once. They appear under their final name only when all are there, and one
# fetches while others wait, so that clusters can start side by side.
need_jars() {
	KAFKA_CLASSPATH="$kafka_cache/libs/*:$kafka_cache/quiet/*"
	BROKER_CLASSPATH="$kafka_cache/libs/*:$kafka_cache/warn/*"
	[[ -d $kafka_cache ]] && return 0
	mkdir -p "$(dirname "$kafka_cache")"
	(
		flock 9
		[[ -d $kafka_cache ]] || fetch_jars
	) 9>"$kafka_cache.lock"
}

fetch_jars() {
	"$kafka_repo/test/install" maven
	say "fetching Apache Kafka $KAFKA_VERSION from Maven Central"
	local part attempt
	rm -rf "$kafka_cache".part.*
	part=$(mktemp -d "$kafka_cache.part.XXXXXX")
	for attempt in 1 2 3; do
		if mvn --batch-mode --quiet --strict-checksums --file "$kafka_here/pom.xml" \
			-Dkafka.version="$KAFKA_VERSION" dependency:copy-dependencies \
			-DincludeScope=runtime -DoutputDirectory="$part/libs" >"$part/maven.log" 2>&1 </dev/null; then
			break
		fi
		cat "$part/maven.log" >&2
		((attempt < 3)) || die "cannot fetch Apache Kafka $KAFKA_VERSION: Maven failed three times"
		sleep $((attempt * 2))
	done
	# Tools stay quiet; brokers write their warnings to a file.
	mkdir "$part/quiet" "$part/warn"
	mv "$part"/libs/slf4j-nop-*.jar "$part/quiet/"
	mv "$part"/libs/slf4j-simple-*.jar "$part/warn/"
	chmod 755 "$part"
	mv -T "$part" "$kafka_cache"
	say "jars are in $kafka_cache"
}

# port_taken PORT: whether anything listens on, or is connected from, a port of
# this machine.
port_taken() {
	local hex
	printf -v hex '%04X' "$1"
	cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk -v port="$hex" \
		'{ n = split($2, a, ":"); if (a[n] == port) found = 1 } END { exit !found }'
}

# free_ports COUNT: the first of a run of free ports below those that the kernel
# hands out to clients.
free_ports() {
	local try first port count=$1
	for try in {1..200}; do
		first=$((10000 + (RANDOM * 32768 + RANDOM) % 20000))
		for ((port = first; port < first + count; port++)); do
			if port_taken "$port"; then continue 2; fi
		done
		echo "$first"
		return 0
	done
	die "no free ports found after $try attempts"
}

# need_archive: sets CLASS_ARCHIVE, the brokers' classes as the JVM has them in
# memory, which spares each start more than two seconds of a processor. It is
# made once for a JVM, by a broker that is started for it. Without one, brokers
# start as well.
need_archive() {
	CLASS_ARCHIVE=$kafka_cache/broker-$("$JAVA" -version 2>&1 | cksum | cut -d ' ' -f 1).jsa
	[[ ! -e $CLASS_ARCHIVE ]] || return 0
	(
		flock 9
		[[ -e $CLASS_ARCHIVE ]] || make_archive || say "no class archive: brokers start more slowly"
	) 9>"$kafka_cache.lock"
}

make_archive() {
	local dir archive=$CLASS_ARCHIVE made='' deadline
	dir=$(mktemp -d "${TMPDIR:-/tmp}/joiner-kafka.XXXXXX")
	mkdir "$dir/1"
	CLASS_ARCHIVE=''
	if one_node "$dir/1" && launch "$dir/1" "-XX:ArchiveClassesAtExit=$archive.part"; then
		deadline=$((SECONDS + 120))
		until (($(members "$(port_of "$dir/1")") > 0)) || ((SECONDS >= deadline)) || ! alive "$dir/1"; do
			sleep 0.2
		done
		signal "$dir/1" TERM # the classes are written at an orderly end
		await_end "$dir/1" 120 || signal "$dir/1" KILL
		mv "$archive.part" "$archive" 2>/dev/null && made=1
	fi
	CLASS_ARCHIVE=$archive
	rm -rf "$dir" "$archive.part"
	[[ -n $made ]] && say "the brokers' classes are in $archive"
}

# one_node DIR: a cluster of one, formatted.
one_node() {
	local port
	port=$(free_ports 2) || return 1
	echo "$port" >"$1/port"
	cat >"$1/server.properties" <<-END
		process.roles=broker,controller
		node.id=1
		controller.quorum.voters=1@127.0.0.1:$((port + 1))
		listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
		controller.listener.names=CONTROLLER
		listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
		log.dirs=$1/data
	END
	storage_format "$1" "$(cluster_id)" >"$1/format.log" 2>&1
}

cluster_id() {
	local id
	id=$(head -c 16 /dev/urandom | base64 | tr '+/' 'AB')
	echo "${id:0:22}"
}

# storage_format DIR ID [argument of StorageTool…]
storage_format() {
	local node=$1 id=$2
	shift 2
	"$JAVA" -Xmx128m -XX:TieredStopAtLevel=1 ${CLASS_ARCHIVE:+"-XX:SharedArchiveFile=$CLASS_ARCHIVE"} \
		-cp "$BROKER_CLASSPATH" kafka.tools.StorageTool \
		format --cluster-id "$id" --config "$node/server.properties" "$@" </dev/null
}

# has_argument PID ARGUMENT: whether the process runs and was started with it. (Not
# by a pipe into grep -q: whoever writes into it may be ended by its early end, and
# the pipe has failed then.)
has_argument() {
	local word
	[[ -n $1 && -r /proc/$1/cmdline ]] || return 1
	while IFS= read -r -d '' word; do
		if [[ $word == "$2" ]]; then return 0; fi
	done 2>/dev/null <"/proc/$1/cmdline"
	return 1
}

# alive DIR: whether the process of a node's pid file runs, and is that node.
alive() { has_argument "$(cat "$1/pid" 2>/dev/null)" "$1/server.properties"; }

# signal DIR SIGNAL: only ever to a process that is that node.
signal() {
	if alive "$1"; then
		kill "-$2" "$(cat "$1/pid")" 2>/dev/null || true
	fi
}

# await_end DIR SECONDS: whether the node has ended within that time.
await_end() {
	local deadline=$((SECONDS + $2))
	while alive "$1"; do
		((SECONDS < deadline)) || return 1
		sleep 0.1
	done
}

# launch DIR [option of the JVM…]: starts the node that was formatted there.
launch() {
	local dir=$1 heap=${KAFKA_HEAP:-512m} options=()
	shift
	if [[ -f $dir/jvm.options ]]; then mapfile -t options <"$dir/jvm.options"; fi
	# Its own session: a Ctrl-C at the terminal is not for the brokers.
	# shellcheck disable=SC2086 # several options
	setsid "$JAVA" -Xmx"$heap" -XX:+UseSerialGC ${KAFKA_JVM--XX:TieredStopAtLevel=1} \
		${CLASS_ARCHIVE:+"-XX:SharedArchiveFile=$CLASS_ARCHIVE"} "$@" -Djava.awt.headless=true \
		-XX:+ExitOnOutOfMemoryError \
		-Dorg.slf4j.simpleLogger.defaultLogLevel="${KAFKA_LOG_LEVEL:-warn}" \
		-Dorg.slf4j.simpleLogger.showDateTime=true \
		-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS \
		${options[@]+"${options[@]}"} \
		-cp "$BROKER_CLASSPATH" kafka.Kafka "$dir/server.properties" \
		>>"$dir/log" 2>&1 </dev/null 9>&- &
	echo $! >"$dir/pid"
	# Its arguments in /proc come with the exec: until then it is not alive.
	local i
	for ((i = 0; i < 250; i++)); do
		if alive "$dir"; then return 0; fi
		sleep 0.02
	done
}

# members PORT: how many brokers are in the cluster by the word of the one that
# listens there, 0 where it does not answer. It is a Metadata request (key 3,
# version 1, all topics) by hand, since starting a Java tool takes a second.
members() {
	local answer
	answer=$(
		exec 2>/dev/null
		exec 8<>"/dev/tcp/127.0.0.1/$1" || exit 0
		printf '\0\0\0\016\0\003\0\001\0\0\0\001\0\0\377\377\377\377' >&8
		timeout 5 head -c 12 <&8 | od -An -v -tu1
	) || true
	# Four bytes of length, four of correlation id, four of the number of brokers.
	local -a bytes
	read -r -a bytes <<<"${answer//$'\n'/ }"
	((${#bytes[@]} == 12)) || {
		echo 0
		return
	}
	echo $((bytes[10] * 256 + bytes[11]))
}

# nodes DIR: the directories of a cluster's nodes, in order.
nodes() {
	local n
	for ((n = 1; ; n++)); do
		[[ -f $1/$n/server.properties ]] || return 0
		echo "$1/$n"
	done
}

port_of() { cat "$1/port"; }
