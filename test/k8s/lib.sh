# Shared by the scripts of this directory; sourced, never run.
# shellcheck shell=bash disable=SC2034 # the scripts use what it sets

k8s_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
k8s_repo=$(cd "$k8s_here/../.." && pwd)
k8s_cache=${JOINER_CACHE:-${HOME:-/root}/.cache/joiner}/onenode
k8s_bin=$k8s_cache/bin
# All that a node has lies here: keys, settings, data, logs. One node a machine:
# its network is the machine's.
k8s_dir=${JOINER_K8S_DIR:-$k8s_cache}
k8s_name=node1
# The bridge that pods are plugged into. Its address is that of the node, of the
# API server, of the cluster's DNS, and of brokers on the host.
k8s_bridge=joiner0
k8s_host=10.244.0.1
k8s_pods=10.244.0.0/24
k8s_services=10.96.0.0/16
k8s_api_service=10.96.0.1
k8s_started=$(date +%s%N)

# say MESSAGE: progress on standard error, with the seconds since the start.
say() {
	local ms=$((($(date +%s%N) - k8s_started) / 1000000))
	printf 'k8s/%s: %s (%d.%01d s)\n' "${0##*/}" "$*" $((ms / 1000)) $((ms % 1000 / 100)) >&2
}

die() {
	printf 'k8s/%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

usage_error() {
	printf 'k8s/%s: %s\n' "${0##*/}" "$*" >&2
	exit 2
}

need_root() { ((EUID == 0)) || die "needs root: it makes network devices, mounts and cgroups"; }

# use_node: what commands need to reach the node and its containerd.
use_node() {
	export PATH=$k8s_bin:$PATH:/usr/sbin KUBECONFIG=$k8s_dir/etc/admin.conf
	export CONTAINERD_ADDRESS=$k8s_dir/run/containerd.sock
}

# keep FILE: standard input into FILE, which is left alone where it says that
# already: kube-proxy ends when its settings are written anew.
keep() {
	cat >"$1.new"
	if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}

# --- keys ---------------------------------------------------------------------

elliptic=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc)

# make_authority: the cluster's certificate authority, and the key that signs the
# tokens of service accounts.
make_authority() {
	local pki=$k8s_dir/etc/pki
	mkdir -p "$pki"
	if [[ ! -s $pki/ca.crt ]]; then
		openssl req -x509 -new "${elliptic[@]}" -days 3650 -keyout "$pki/ca.key" -out "$pki/ca.crt" \
			-subj /CN=joiner-test-ca -addext keyUsage=critical,keyCertSign,digitalSignature 2>>"$k8s_dir/log/openssl"
	fi
	if [[ ! -s $pki/accounts.pub ]]; then
		openssl ecparam -name prime256v1 -genkey -noout -out "$pki/accounts.key"
		openssl ec -in "$pki/accounts.key" -pubout -out "$pki/accounts.pub" 2>/dev/null
	fi
}

# certificate NAME SUBJECT [SUBJECT_ALTERNATIVE_NAMES]
certificate() {
	local pki=$k8s_dir/etc/pki names=()
	[[ ! -s $pki/$1.crt ]] || return 0
	if (($# > 2)); then names=(-addext "subjectAltName=$3"); fi
	openssl req -x509 -new "${elliptic[@]}" -days 3650 -keyout "$pki/$1.key" -out "$pki/$1.crt" \
		-subj "$2" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" \
		-addext basicConstraints=critical,CA:FALSE -addext keyUsage=critical,digitalSignature \
		-addext extendedKeyUsage=serverAuth,clientAuth ${names[@]+"${names[@]}"} 2>>"$k8s_dir/log/openssl"
}

# kubeconfig NAME SERVER: who has the certificate NAME, at that API server.
kubeconfig() {
	local pki=$k8s_dir/etc/pki
	keep "$k8s_dir/etc/$1.conf" <<-END
		apiVersion: v1
		kind: Config
		current-context: node
		contexts: [{name: node, context: {cluster: node, user: $1}}]
		clusters: [{name: node, cluster: {server: "$2", certificate-authority: "$pki/ca.crt"}}]
		users: [{name: $1, user: {client-certificate: "$pki/$1.crt", client-key: "$pki/$1.key"}}]
	END
}

# --- processes ----------------------------------------------------------------

# began PID: when the process began, in ticks; empty where there is none, or
# nothing but a zombie of it.
began() {
	local stat
	stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
	stat=${stat##*) } # its name, in parentheses, may hold blanks
	[[ $stat == Z* ]] || cut -d ' ' -f 20 <<<"$stat"
}

# alive NAME: whether the process that was started under this name runs. Its
# number may be another's by now, so the time of its start counts, too.
alive() {
	local pid at
	[[ -f $k8s_dir/run/$1.pid ]] || return 1
	read -r pid at <"$k8s_dir/run/$1.pid"
	[[ -n $at && $(began "$pid") == "$at" ]]
}

# start NAME COMMAND…: in a session of its own, which outlives this script.
start() {
	local name=$1 pid
	shift
	if alive "$name"; then return 0; fi
	setsid nohup "$@" >"$k8s_dir/log/$name" 2>&1 </dev/null 9>&- &
	pid=$!
	echo "$pid $(began "$pid")" >"$k8s_dir/run/$name.pid"
}

# stop NAME: what start began; by force when it does not end in ten seconds.
stop() {
	local pid i
	if alive "$1"; then
		read -r pid _ <"$k8s_dir/run/$1.pid"
		kill "$pid" 2>/dev/null || true
		for ((i = 0; i < 50; i++)); do
			alive "$1" || break
			if ((i == 40)); then kill -KILL "$pid" 2>/dev/null || true; fi
			sleep 0.25
		done
	fi
	rm -f "$k8s_dir/run/$1.pid"
}

# await SECONDS PROCESS WHAT COMMAND…: until the command succeeds, as long as the
# process lives.
await() {
	local deadline=$((SECONDS + $1)) process=$2 what=$3
	shift 3
	while ((SECONDS < deadline)); do
		if "$@" >/dev/null 2>&1; then
			say "$what"
			return 0
		fi
		alive "$process" || break
		sleep 0.25
	done
	tail -n 20 "$k8s_dir/log/$process" >&2 || true
	die "not so in time, or $process has ended: $what; the end of its log is above"
}

# start_api ADDRESS ETCD_PORT API_PORT [FLAG…]: etcd and the API server.
start_api() {
	local address=$1 etcd=http://127.0.0.1:$2 peer=http://127.0.0.1:$(($2 + 1)) port=$3 pki=$k8s_dir/etc/pki
	shift 3
	start etcd etcd --name node --data-dir "$k8s_dir/run/etcd" --unsafe-no-fsync \
		--listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
		--listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "node=$peer"
	start apiserver kube-apiserver --etcd-servers "$etcd" \
		--bind-address "$address" --advertise-address "$address" --secure-port "$port" \
		--service-cluster-ip-range "$k8s_services" --authorization-mode Node,RBAC --allow-privileged=true \
		--client-ca-file "$pki/ca.crt" --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
		--service-account-issuer https://kubernetes.default.svc.cluster.local \
		--service-account-key-file "$pki/accounts.pub" --service-account-signing-key-file "$pki/accounts.key" "$@"
}
