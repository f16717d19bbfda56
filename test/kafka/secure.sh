# What --secure adds to a cluster; sourced by up and down, never run.
# shellcheck shell=bash disable=SC2154 # lib.sh, sourced before it, sets some

# The listeners besides PLAINTEXT and CONTROLLER, each with its protocol and
# SASL mechanism. ADMIN is the brokers' own and the administrator's.
secure_listeners=(
	"ADMIN SASL_PLAINTEXT PLAIN"
	"TLS SSL"
	"MTLS SSL"
	"PLAIN SASL_SSL PLAIN"
	"SCRAM256 SASL_SSL SCRAM-SHA-256"
	"SCRAM512 SASL_SSL SCRAM-SHA-512"
	"OAUTH SASL_SSL OAUTHBEARER"
)

# secure_ports BROKERS: how many ports a cluster needs: one a listener and
# broker, and the token endpoint's two.
secure_ports() { echo $(((2 + ${#secure_listeners[@]}) * $1 + 2)); }

# secure_port BROKERS FIRST LISTENER BROKER: where a broker's listener (from 0)
# listens.
secure_port() { echo $(($2 + (2 + $3) * $1 + $4 - 1)); }

# secure_address DIR LISTENER: the address that a listener is on. The brokers' own
# stays on loopback.
secure_address() { if [[ $2 == ADMIN ]]; then echo 127.0.0.1; else cat "$1/secure/address"; fi; }

# make_secure DIR BROKERS FIRST ADDRESS: certificates, passwords, the ports, and
# the address of the listeners for clients.
make_secure() {
	local dir=$1/secure ends
	ends=$(($3 + (2 + ${#secure_listeners[@]}) * $2))
	mkdir -p "$dir"
	(cd "$kafka_repo" && go build -o "$dir/secure" ./test/secure) || die "cannot build test/secure"
	"$dir/secure" -address "$4" make "$dir" || die "cannot make the certificates"
	echo "$3" >"$dir/first"
	echo "$4" >"$dir/address"
	echo "$ends" >"$dir/token.port"
	secure_clients "$dir"
}

# secure_clients DIR: the administrator's settings, for Kafka's tools and kcat.
secure_clients() {
	local password
	password=$(cat "$1/admin.password")
	cat >"$1/admin.properties" <<-END
		security.protocol=SASL_PLAINTEXT
		sasl.mechanism=PLAIN
		sasl.jaas.config=$(plain_login admin "$password")
	END
	cat >"$1/kcat.conf" <<-END
		security.protocol=sasl_plaintext
		sasl.mechanism=PLAIN
		sasl.username=admin
		sasl.password=$password
	END
}

# plain_login USER PASSWORD [OPTION...]: a JAAS entry.
plain_login() {
	local entry="org.apache.kafka.common.security.plain.PlainLoginModule required username=\"$1\" password=\"$2\""
	shift 2
	echo "$entry$(printf ' %s' "$@");"
}

# secure_properties DIR BROKERS FIRST N: a broker's settings more.
#
# A client of the TLS listener that shows no certificate is User:ANONYMOUS, as
# one of PLAINTEXT is, so that neither is a superuser: the brokers log in.
secure_properties() {
	local dir=$1 brokers=$2 first=$3 n=$4 i name protocol mechanism advertised map login tokens
	advertised="PLAINTEXT://127.0.0.1:$(cat "$dir/$n/port")"
	map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT
	for i in "${!secure_listeners[@]}"; do
		read -r name protocol _ <<<"${secure_listeners[i]}"
		advertised+=,$name://$(secure_address "$dir" "$name"):$(secure_port "$brokers" "$first" "$i" "$n")
		map+=,$name:$protocol
	done
	login=$(plain_login broker "$(cat "$dir/secure/broker.password")" \
		"user_broker=\"$(cat "$dir/secure/broker.password")\"" \
		"user_admin=\"$(cat "$dir/secure/admin.password")\"" \
		"user_joiner=\"$(cat "$dir/secure/password")\"")
	tokens=http://127.0.0.1:$(cat "$dir/secure/token.port")/jwks
	# Later lines win.
	cat >>"$dir/$n/server.properties" <<-END
		listeners=$advertised,CONTROLLER://127.0.0.1:$((first + brokers + n - 1))
		advertised.listeners=$advertised
		listener.security.protocol.map=$map
		inter.broker.listener.name=ADMIN
		sasl.mechanism.inter.broker.protocol=PLAIN
		sasl.mechanism.controller.protocol=PLAIN
		listener.name.controller.sasl.enabled.mechanisms=PLAIN
		listener.name.controller.plain.sasl.jaas.config=$login
		ssl.keystore.type=PEM
		ssl.keystore.location=$dir/secure/keystore.pem
		ssl.truststore.type=PEM
		ssl.truststore.location=$dir/secure/ca.pem
		ssl.principal.mapping.rules=RULE:^CN=([^,]*).*$/\$1/,DEFAULT
		listener.name.mtls.ssl.client.auth=required
		authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
		super.users=User:broker;User:admin
		allow.everyone.if.no.acl.found=false
	END
	for i in "${!secure_listeners[@]}"; do
		read -r name _ mechanism <<<"${secure_listeners[i]}"
		sasl_properties "${name,,}" "$mechanism" "$login" "$tokens" >>"$dir/$n/server.properties"
	done
	# Brokers ask only where they are told that they may.
	echo "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=$tokens" >"$dir/$n/jvm.options"
}

# sasl_properties LISTENER MECHANISM LOGIN JWKS
sasl_properties() {
	local of=listener.name.$1
	[[ -n $2 ]] || return 0
	echo "$of.sasl.enabled.mechanisms=$2"
	of+=.${2,,}
	case $2 in
	PLAIN) echo "$of.sasl.jaas.config=$3" ;;
	SCRAM-*) echo "$of.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;" ;;
	OAUTHBEARER)
		cat <<-END
			$of.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
			$of.sasl.server.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
			$of.sasl.oauthbearer.jwks.endpoint.url=$4
			$of.sasl.oauthbearer.expected.audience=kafka
			$of.sasl.oauthbearer.expected.issuer=joiner-test
		END
		;;
	esac
}

# tokens_alive DIR: whether the token endpoint's process runs, and is that one.
tokens_alive() { has_argument "$(cat "$1/secure/token.pid" 2>/dev/null)" "$1/secure/secure"; }

# start_tokens DIR: starts the token endpoint and waits until it answers. Its
# tokens are valid for KAFKA_TOKEN_LIFETIME (5m).
start_tokens() {
	local dir=$1/secure port deadline=$((SECONDS + 30))
	port=$(cat "$dir/token.port")
	: >"$dir/token.out"
	setsid "$dir/secure" -lifetime "${KAFKA_TOKEN_LIFETIME:-5m}" -http "127.0.0.1:$port" -https "127.0.0.1:$((port + 1))" serve "$dir" \
		>"$dir/token.out" 2>"$dir/token.log" </dev/null 9>&- &
	echo $! >"$dir/token.pid"
	# Its name in /proc changes with the exec: until then it is not alive.
	until [[ -s $dir/token.out ]]; do
		if ! kill -0 "$(cat "$dir/token.pid")" 2>/dev/null || ((SECONDS > deadline)); then
			cat "$dir/token.log" >&2
			return 1
		fi
		sleep 0.05
	done
}

# stop_tokens DIR: stops the token endpoint, if there is one.
stop_tokens() {
	local deadline=$((SECONDS + 10))
	if ! tokens_alive "$1"; then return 0; fi
	kill "$(cat "$1/secure/token.pid")" 2>/dev/null || true
	while tokens_alive "$1"; do
		((SECONDS < deadline)) || die "the token endpoint of $1 does not end"
		sleep 0.05
	done
	rm -f "$1/secure/token.pid"
}

# secure_env DIR BROKERS: the environment more; KAFKA_BROKERS is now ADMIN's.
secure_env() {
	local dir=$1 brokers=$2 first i name n list port exported=''
	first=$(cat "$dir/secure/first")
	port=$(cat "$dir/secure/token.port")
	for i in "${!secure_listeners[@]}"; do
		read -r name _ <<<"${secure_listeners[i]}"
		list=
		for ((n = 1; n <= brokers; n++)); do
			list+=${list:+,}$(secure_address "$dir" "$name"):$(secure_port "$brokers" "$first" "$i" "$n")
		done
		if [[ $name == ADMIN ]]; then
			echo "KAFKA_BROKERS='$list'"
		else
			echo "KAFKA_SECURE_$name='$list'"
			exported+=" KAFKA_SECURE_$name"
		fi
	done
	for name in DIR CA CERT KEY USERNAME PASSWORD_FILE CLIENT_ID CLIENT_SECRET_FILE TOKEN_URL; do
		exported+=" KAFKA_SECURE_$name"
	done
	cat <<-END
		KAFKA_SECURE_DIR='$dir/secure'
		KAFKA_SECURE_CA='$dir/secure/ca.pem'
		KAFKA_SECURE_CERT='$dir/secure/client.pem'
		KAFKA_SECURE_KEY='$dir/secure/client.key'
		KAFKA_SECURE_USERNAME='joiner'
		KAFKA_SECURE_PASSWORD_FILE='$dir/secure/password'
		KAFKA_SECURE_CLIENT_ID='joiner'
		KAFKA_SECURE_CLIENT_SECRET_FILE='$dir/secure/client_secret'
		KAFKA_SECURE_TOKEN_URL='https://127.0.0.1:$((port + 1))/token'
		KAFKA_ADMIN_CONFIG='$dir/secure/admin.properties'
		KCAT_CONFIG='$dir/secure/kcat.conf'
		export KAFKA_ADMIN_CONFIG KCAT_CONFIG$exported
	END
}
