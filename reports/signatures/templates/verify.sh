bash <<'END_OF_CHECK'
set -uf
export LC_ALL=C
run='@RUN@'
kind='@KIND@'
bad='' unknown='' work='' ended=''

say() { printf '%s\n' "$*"; }
no() { say "does not hold: $1"; bad="$bad${bad:+; }$1"; }
named() { tr -c 'A-Za-z0-9._+@=,/\n-' '?'; }
finish() {
  if [ -n "$work" ]; then rm -rf -- "$work"; fi
  if [ -z "$ended" ]; then say 'DOES NOT HOLD: the check ended before it was done'; exit 1; fi
}
trap finish EXIT

# Nothing but files and folders: a link or a pipe is not opened.
listing() {
  local name
  for name in $(find . ! -type f ! -type d -print | sed 's|^\./||' | named); do
    no "$name: is no regular file"
  done
  # A command that was killed leaves its lock, and nothing else if it changed nothing.
  if [ -n "$(find . -mindepth 1 -path './.unfinished*' ! \( -type d -path ./.unfinished \) \
    ! \( -type f -size -3 -path ./.unfinished/lock \))" ]; then
    no '.unfinished: a write was cut off here, or is going on'
  fi
  if [ -e checkpoint ]; then no 'checkpoint: is not signed; a finished run has none'; fi
  find . "${private[@]}" -o -path ./checkpoint -prune -o -path ./.unfinished -prune \
    -o -type f ! -path "./$last.json" ! -path "./$last.json.tsr" -print \
    | sed 's|^\./||' | sort > "$work/present"
}

# ENVELOPE ROLE TYPE: the signature over a statement, and whose statement it is.
envelope() {
  local file="$1.json" key="$2.pub" payload keyid sig finger given s type
  payload=$(sed -n '3s/^"payload": "\([A-Za-z0-9+\/=]*\)",$/\1/p' "$file" 2> "$work/error")
  keyid=$(sed -n '5s/^"keyid": "\([A-Za-z0-9+\/=:]*\)",$/\1/p' "$file" 2> "$work/error")
  sig=$(sed -n '6s/^"sig": "\([A-Za-z0-9+\/=]*\)"$/\1/p' "$file" 2> "$work/error")
  printf '%s' "$payload" | openssl base64 -d -A > "$work/$1.payload"
  printf '%s' "$sig" | openssl base64 -d -A > "$work/$1.sig"
  {
    printf '{\n"payloadType": "application/vnd.in-toto+json",\n"payload": "%s",\n' \
      "$(openssl base64 -A -in "$work/$1.payload")"
    printf '"signatures": [{\n"keyid": "%s",\n"sig": "%s"\n}]\n}\n' \
      "$keyid" "$(openssl base64 -A -in "$work/$1.sig")"
  } > "$work/$1.again"
  if ! cmp -s "$work/$1.again" "$file"; then
    no "$file: is missing, or not laid out as envelopes are"
    return
  fi
  {
    printf 'DSSEv1 28 application/vnd.in-toto+json %d ' "$(wc -c < "$work/$1.payload")"
    cat "$work/$1.payload"
  } > "$work/$1.signed"
  if ! openssl dgst -sha256 -verify "$key" -signature "$work/$1.sig" "$work/$1.signed" \
    > "$work/error" 2>&1; then
    no "$file: its signature is not by $key over this content"
  fi
  # (r, n - s) signs what (r, s) signs; only the lower s is made, in all but old runs.
  s=$(openssl asn1parse -inform DER -in "$work/$1.sig" 2> "$work/error" \
    | sed -n 's/.*INTEGER *://p' | sed -n '2s/^0*//p')
  s=$(printf '%64s' "$s" | tr ' ' 0)
  if ! grep -q '^"predicateType": ".*/\(training\|run\)/v1",$' "$work/$1.payload" \
    && [[ $s > 7FFFFFFF800000007FFFFFFFFFFFFFFFDE737D56D38BCF4279DCE5617E3192A8 ]]; then
    no "$file: its signature was rewritten"
  fi
  # Types had addresses as names before they had URNs.
  type="urn:dpfedadamw:attestation:$3\|https://dpfedadamw.org/attestation/${3%:*}/v[12]"
  if ! grep -q "^\"predicateType\": \"\($type\)\",\$" "$work/$1.payload" \
    || ! grep -q "^  \"role\": \"$2\",\$" "$work/$1.payload"; then
    no "$file: is not what the $2 signs there"
  fi
  if ! grep -q "^  \"run\": \"$run\",\$" "$work/$1.payload"; then
    no "$file: speaks of another run than $run"
  fi
  finger="SHA256:$(openssl pkey -pubin -in "$key" -outform DER 2> "$work/error" \
    | openssl dgst -sha256 -binary | openssl base64 -A | tr -d =)"
  if [ "$keyid" != "$finger" ]; then no "$file: names another key than $key"; fi
  say "$file: number $(sed -n 's/^  "sequence": \([0-9]*\),$/\1/p' "$work/$1.payload") of this" \
    "run, by the $2, $finger"
  if [ "$2" = trainer ]; then given=${TRAINER:-}; else given=${AUDITOR:-}; fi
  if [ -z "$given" ]; then
    unknown="$unknown${unknown:+ and }of the $2"
  elif [ "${given%=}" != "$finger" ]; then
    no "$key: is not the key whose fingerprint you gave"
  fi
}

# ENVELOPE FILE...: every file it signs is as it was signed, and these are among them.
content() {
  local name covers="$1" subject
  subject='{"name": "\([A-Za-z0-9._+@=,/-]*\)", "digest": {"sha256": "\([0-9a-f]\{64\}\)"}}'
  sed -n "s|^$subject,\{0,1\}\$|\2  \1|p" "$work/$covers.payload" > "$work/$covers.sums"
  cut -c 67- "$work/$covers.sums" | sort > "$work/$covers.names"
  shift
  for name in "$@"; do
    if ! grep -q -x -F -e "$name" "$work/$covers.names"; then
      no "$name: is not covered by $covers.json"
    fi
  done
  sha256sum --check --strict "$work/$covers.sums" > "$work/checked" 2> "$work/error"
  for name in $(sed -n 's/: FAILED.*$//p' "$work/checked" | named); do
    no "$name: is missing, or changed since $covers.json was signed"
  done
  if [ "$(grep -c ': OK$' "$work/checked")" -eq 0 ]; then no "$covers.json: covers no file here"; fi
}

# Nothing unsigned lies beside what was signed.
beside() {
  local name
  for name in $(comm -13 "$work/$last.names" "$work/present" | named); do
    no "$name: is not covered by $last.json"
  done
}

# NAME LINES: the salted digest of the evidence is the one that an envelope names.
evidence_of() {
  local digest
  digest=$(openssl dgst -sha256 -mac HMAC -macopt "hexkey:$salt" "$2" 2> "$work/error" \
    | sed 's/^.*= //')
  if ! grep -q "^{\"name\": \"evidence\", \"digest\": {\"hmacSha256\": \"$digest\"}}" \
    "$work/$1.payload"; then
    no "evidence: changed since $1.json was signed, or its salt did"
  fi
}

evidence() {
  local salt
  if [ ! -e evidence ]; then
    say 'evidence: is not here, so its signed digest was not compared'
    return
  fi
  salt=$(od -An -v -tx1 evidence/salt 2> "$work/error" | tr -d ' \n')
  if [ "${#salt}" -ne 64 ]; then
    no 'evidence/salt: 32 bytes are needed'
    return
  fi
  find evidence -type f ! -path evidence/salt -exec sha256sum {} + \
    | sed 's|  evidence/|  |' | sort > "$work/judged"
  sed '/^[0-9a-f]*  findings\.json$/d' "$work/judged" > "$work/trained"
  evidence_of training.attestation "$work/trained"
  evidence_of attestation "$work/judged"
}

# PDF: one signature, over every byte but its own hexadecimal digits.
pages() {
  local pdf="$1" a b c d more hex length
  if [ "$(grep -a -o '/ByteRange' "$pdf" | grep -c .)" -ne 1 ]; then
    no "$pdf: must have one /ByteRange"
    return
  fi
  read -r a b c d more <<< "$(grep -a -o '/ByteRange *\[[0-9 ]*\]' "$pdf" | tr -c '0-9\n' ' ')"
  local number='^[1-9][0-9]{0,10}$'
  if [[ ${a:-} != 0 || ! ${b:-} =~ $number || ! ${c:-} =~ $number || ! ${d:-} =~ $number \
    || -n ${more:-} ]] || [ "$((c + d))" -ne "$(wc -c < "$pdf")" ] || [ "$b" -ge "$c" ]; then
    no "$pdf: its /ByteRange is not all of it but one gap"
    return
  fi
  hex=$(head -c "$c" "$pdf" | tail -c "$((c - b))" | tr '\0\n' '??')
  local digits='^<([0-9A-Fa-f][0-9A-Fa-f])+>$'
  if [[ ! $hex =~ $digits ]]; then
    no "$pdf: its gap holds more than hexadecimal digits"
    return
  fi
  hex=${hex:1:${#hex}-2}
  case ${hex:0:4} in
    3081) length=$((16#${hex:4:2} + 3)) ;;
    3082) length=$((16#${hex:4:4} + 4)) ;;
    *)
      no "$pdf: its gap holds no signature"
      return
      ;;
  esac
  if [[ ${hex:length*2} == *[!0]* ]]; then no "$pdf: unsigned bytes stand behind its signature"; fi
  printf '%b' "$(printf '%s' "${hex:0:length*2}" | sed 's/../\\x&/g')" > "$work/der"
  { head -c "$b" "$pdf"; tail -c "$d" "$pdf"; } > "$work/pages"
  if ! openssl cms -verify -inform DER -in "$work/der" -content "$work/pages" -binary -noverify \
    -signer "$work/signer" -out "$work/out" 2> "$work/error"; then
    no "$pdf: its signature does not hold"
  elif [ "$(grep -c BEGIN "$work/signer")" -ne 1 ] \
    || ! openssl x509 -in "$work/signer" -noout -pubkey | cmp -s - auditor.pub; then
    no "$pdf: is not signed by auditor.pub"
  fi
  if command -v pdfsig > "$work/out"; then
    pdfsig -nocert "$pdf" > "$work/pdfsig" 2> "$work/error"
    if [ "$(grep -c '^Signature #' "$work/pdfsig")" -ne 1 ] \
      || ! grep -q 'Signature Validation: Signature is Valid' "$work/pdfsig" \
      || ! grep -q 'Total document signed' "$work/pdfsig"; then
      no "$pdf: pdfsig does not find one valid signature over all of it"
    fi
  fi
}

stamp() {
  if [ ! -e "$1.json.tsr" ]; then return; fi
  if [ -z "${TSA_ROOT:-}" ]; then
    say "$1.json.tsr: not judged; set TSA_ROOT to the certificate of an authority that you trust"
  elif openssl ts -verify -data "$1.json" -in "$1.json.tsr" -CAfile "$TSA_ROOT" \
    > "$work/error" 2>&1; then
    say "$1.json.tsr: $(openssl ts -reply -in "$1.json.tsr" -text 2> "$work/error" \
      | grep 'Time stamp:')"
  else
    no "$1.json.tsr: does not hold under TSA_ROOT"
  fi
}

check() {
  local tool pdf
  for tool in cat cmp comm cut find grep head mktemp od openssl sed sha256sum sort tail tr wc; do
    if ! command -v "$tool" > /dev/null; then no "$tool: is not on this machine"; fi
  done
  if [ -n "$bad" ]; then return; fi
  if ! work=$(mktemp -d) || [ ! -d "$work" ]; then
    no 'mktemp: no folder to work in'
    return
  fi
  last=attestation private=(-path ./evidence -prune)
  # Nothing private belongs to the public files, and nothing is a file and a folder.
  if [ "$kind" = public ]; then last=attestation-public private=(-type f -type d); fi
  if [ ! -e "$last.json" ]; then
    no "$last.json: is missing; this must run in the folder that it signs"
    return
  fi
  listing
  if [ -n "$bad" ]; then return; fi
  if [ "$kind" = public ]; then
    envelope attestation-public auditor public:v1
    content attestation-public model.safetensors model.json metrics.jsonl report-public.json \
      report-public.pdf report-public.html VERIFY-public.md trainer.pub auditor.pub
    beside
  else
    envelope training.attestation trainer training:v2
    envelope attestation auditor run:v2
    content training.attestation spec.yaml ledger.jsonl metrics.jsonl model.safetensors model.json \
      trainer.pub
    content attestation spec.yaml ledger.jsonl metrics.jsonl model.safetensors model.json \
      audit.json report.json report.pdf trainer.pub auditor.pub training.attestation.json VERIFY.md
    beside
    if ! head -n 1 ledger.jsonl | grep -q "\"run\":\"$run\""; then
      no "ledger.jsonl: is about another run than $run"
    fi
    evidence
    stamp training.attestation
  fi
  for pdf in report.pdf report-public.pdf; do
    if [ -e "$pdf" ]; then pages "$pdf"; fi
  done
  stamp "$last"
  say 'What is claimed:'
  sed -n '/^"predicate"/,$p' "$work/$last.payload"
}

check < /dev/null
ended=yes
if [ -n "$bad" ]; then
  say "DOES NOT HOLD: $bad"
  exit 1
elif [ -n "$unknown" ]; then
  say "INTACT, SIGNER UNKNOWN: no fingerprint was given $unknown"
  exit 3
fi
say 'ALL HOLD'
END_OF_CHECK
