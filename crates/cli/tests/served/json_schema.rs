//! What verbs print with `--json` is what docs/blockwire.schema.json says, and nothing else.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::daemon::{Daemon, Place, volume};
use crate::verbs::{self, urls};

/// The schema, and what of JSON Schema it uses: everything else is refused, so nothing is passed unseen. Objects have
/// no members that it does not name.
pub struct Schema(Value);

impl Schema {
    pub fn read() -> Schema {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/blockwire.schema.json");
        Schema(serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap())
    }

    /// `verb`: as the schema has it.
    pub fn check(&self, verb: &str, printed: &Value) {
        let of_verb = &self.0["verbs"][verb];
        assert!(of_verb.is_object(), "{verb} has no schema");
        let wrong = self.mistakes(of_verb, printed, "");
        assert!(wrong.is_empty(), "{verb}: {}\n{printed:#}", wrong.join("\n"));
    }

    /// What is wrong with a value, each with its place.
    fn mistakes(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let schema = schema.as_object().unwrap_or_else(|| panic!("{at}: no schema: {schema}"));
        let mut wrong = Vec::new();
        for (keyword, rule) in schema {
            match keyword.as_str() {
                "description" | "title" | "default" | "format" | "properties" => {}
                "type" => wrong.extend((!has_type(rule, value)).then(|| format!("{at}: no {rule}: {value}"))),
                "$ref" => {
                    let name = rule.as_str().and_then(|place| place.strip_prefix("#/$defs/")).unwrap();
                    wrong.extend(self.mistakes(&self.0["$defs"][name], value, at));
                }
                "enum" => {
                    let is_one = rule.as_array().unwrap().contains(value);
                    wrong.extend((!is_one).then(|| format!("{at}: none of {rule}: {value}")));
                }
                "const" => wrong.extend((rule != value).then(|| format!("{at}: not {rule}: {value}"))),
                "minimum" => {
                    let is_enough = value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap());
                    wrong.extend((!is_enough).then(|| format!("{at}: less than {rule}: {value}")));
                }
                "maximum" => {
                    let is_little = value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap());
                    wrong.extend((!is_little).then(|| format!("{at}: more than {rule}: {value}")));
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        wrong.extend(self.mistakes(rule, item, &format!("{at}/{index}")));
                    }
                }
                "required" => {
                    let missing = rule
                        .as_array()
                        .unwrap()
                        .iter()
                        .filter(|name| value.is_object() && value.get(name.as_str().unwrap()).is_none());
                    wrong.extend(missing.map(|name| format!("{at}: {name} is missing")));
                }
                "additionalProperties" => {
                    assert!(!schema.contains_key("properties"), "{at}: both are not understood here");
                    for (name, member) in value.as_object().into_iter().flatten() {
                        wrong.extend(self.mistakes(rule, member, &format!("{at}/{name}")));
                    }
                }
                "anyOf" | "oneOf" => wrong.extend(self.mistakes_of_all(schema, rule, value, at)),
                other => panic!("{at}: \"{other}\" is not understood here"),
            }
        }
        if !schema.contains_key("anyOf") && !schema.contains_key("oneOf") {
            wrong.extend(self.member_mistakes(schema, value, at));
        }
        wrong
    }

    /// One of several must hold. Members may stand beside them (`flatten`): each then has those, too.
    fn mistakes_of_all(
        &self,
        beside: &Map<String, Value>,
        all: &Value,
        value: &Value,
        at: &str,
    ) -> Vec<String> {
        let mut least: Option<Vec<String>> = None;
        for one in all.as_array().unwrap() {
            let mut one = one.clone();
            if let (Some(of_one), Some(Value::Object(more))) = (one.as_object_mut(), beside.get("properties"))
            {
                let members = of_one.entry("properties").or_insert(Value::Object(Map::new()));
                members.as_object_mut().unwrap().extend(more.clone());
            }
            let wrong = self.mistakes(&one, value, at);
            if least.as_ref().is_none_or(|least| wrong.len() < least.len()) {
                least = Some(wrong);
            }
        }
        least.unwrap_or_default()
    }

    fn member_mistakes(&self, schema: &Map<String, Value>, value: &Value, at: &str) -> Vec<String> {
        let (Some(Value::Object(known)), Value::Object(members)) = (schema.get("properties"), value) else {
            return Vec::new();
        };
        let of_member = |(name, member): (&String, &Value)| match known.get(name) {
            // Anything at all.
            Some(Value::Bool(true)) => Vec::new(),
            Some(rule) => self.mistakes(rule, member, &format!("{at}/{name}")),
            None => vec![format!("{at}/{name} is not in the schema")],
        };
        members.iter().flat_map(of_member).collect()
    }
}

/// `rule`: a type, or a list of them.
fn has_type(rule: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type: {other}"),
    };
    match rule {
        Value::Array(names) => names.iter().any(|name| is(name.as_str().unwrap())),
        name => is(name.as_str().unwrap()),
    }
}

fn of_daemon(schema: &Schema, daemon: &Daemon, verb: &str, arguments: &str) -> Value {
    let printed = daemon.ask_json(format!("{verb} {arguments}").trim());
    schema.check(verb, &printed);
    printed
}

#[test]
fn verbs_of_the_daemon_print_what_the_schema_says() {
    let place = Place::new();
    let schema = Schema::read();
    let host = "[[host]]\nname = \"web\"\niqn = [\"iqn.2026-11.test:web\"]\naccess = [{ target = \"*\" }]\n";
    let target = "[[target]]\nname = \"iqn.2026-11.io.blockwire:a\"\nopen = true\nluns = [{ lun = 0, volume = \"a\" }]\n";
    let config = volume("a", "ram:2M") + target + host;
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    for list in
        ["volume", "target", "subsystem", "host", "reservation", "path", "session", "connection", "shard"]
    {
        of_daemon(&schema, &daemon, &format!("{list} list"), "");
    }
    of_daemon(&schema, &daemon, "volume create", "b=ram:1M");
    of_daemon(&schema, &daemon, "volume show", "b --latency");
    of_daemon(&schema, &daemon, "volume set", "b --read-only on");
    of_daemon(&schema, &daemon, "volume set", "b --read-only off");
    of_daemon(&schema, &daemon, "volume resize", "b 2M");
    of_daemon(&schema, &daemon, "path set", "b --state non-optimized");
    of_daemon(&schema, &daemon, "reservation show", "b");
    of_daemon(&schema, &daemon, "target show", "a");
    of_daemon(&schema, &daemon, "subsystem show", "b");
    of_daemon(&schema, &daemon, "host show", "web");
    of_daemon(&schema, &daemon, "host block", "web");
    of_daemon(&schema, &daemon, "host unblock", "web");
    of_daemon(&schema, &daemon, "volume delete", "b");
    of_daemon(&schema, &daemon, "plan", "");
    of_daemon(&schema, &daemon, "apply", "");
    let status = of_daemon(&schema, &daemon, "status", "");
    assert_eq!(status["problems"], json!([]));
    let url = format!("iscsi://{}/iqn.2026-11.io.blockwire:a/0", daemon.at);
    let mut load = std::process::Command::new(env!("CARGO_BIN_EXE_blockwire"))
        .args(["bench", &url, "--runtime=60", "--rate_iops=20"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let id = daemon.connections(1)[0]["id"].clone();
    for list in ["session list", "connection list", "shard list"] {
        of_daemon(&schema, &daemon, list, "");
    }
    let shown = of_daemon(&schema, &daemon, "connection show", &format!("{id} --latency"));
    assert!(shown["negotiated"]["max_burst_bytes"].is_u64(), "{shown}");
    let session = daemon.ask_json("session list")[0]["id"].clone();
    of_daemon(&schema, &daemon, "session kill", &session.to_string());
    load.kill().unwrap();
    load.wait().unwrap();
    let stopped = daemon.ask_json("stop");
    schema.check("stop", &stopped);
}

#[test]
fn verbs_of_the_initiator_print_what_the_schema_says() {
    let (place, daemon) = verbs::served();
    let schema = Schema::read();
    let of = |verb: &str, arguments: &[&str]| {
        let first = verb.split(' ').next().unwrap();
        let printed = verbs::json(&[&[first], arguments, &["--json"]].concat());
        schema.check(verb, &printed);
        printed
    };
    let file = place.path("file");
    fs::write(&file, vec![7; 4096]).unwrap();
    let (file, copied) = (file.to_str().unwrap().to_owned(), place.path("copied"));
    for (url, at) in urls(&daemon, "a")
        .iter()
        .zip([format!("iscsi://{}", daemon.at), format!("nvme+tcp://{}", daemon.nvme.unwrap())])
    {
        of("discover", &[&at]);
        of("doctor", &[url]);
        of("reserve", &[url, "register", "--key", "0xabc1"]);
        let info = of("info", &[url]);
        assert_eq!(info["paths"][0]["access"], "optimized");
        assert_eq!(info["reservation"]["registrants"].as_array().map(Vec::len), Some(1), "{info}");
        of("reserve", &[url, "unregister", "--key", "0xabc1"]);
        of("write", &[url, "--input", &file]);
        of("read", &[url, "--output", copied.to_str().unwrap(), "--length", "4096"]);
        fs::remove_file(&copied).unwrap();
        of("copy", &[url, copied.to_str().unwrap()]);
        of("verify", &[url, copied.to_str().unwrap()]);
        fs::remove_file(&copied).unwrap();
    }
    of("attach --list", &["--list", "--control", place.path("control").to_str().unwrap()]);
    let out = daemon.run("volume show none --json");
    let printed: Value = serde_json::from_slice(&out.stderr).unwrap();
    schema.check("failure", &printed);
    assert_eq!(printed["error"]["fault"], "caller");
}

/// A schema that holds nothing would pass everything.
#[test]
fn the_schema_is_not_passed_by_other_values() {
    let schema = Schema::read();
    let passes = |verb: &str, value: &Value| schema.mistakes(&schema.0["verbs"][verb], value, "").is_empty();
    let good = json!({ "size_bytes": 1, "alike": true });
    assert!(passes("verify", &good));
    for wrong in [
        json!({ "size_bytes": "1", "alike": true }),
        json!({ "size_bytes": 1 }),
        json!({ "size_bytes": 1, "alike": true, "more": 0 }),
        json!({ "size_bytes": -1, "alike": true }),
        json!([]),
    ] {
        assert!(!passes("verify", &wrong), "{wrong}");
    }
    let step = |event: Value| json!({ "steps": [event], "healthy": true, "why": null });
    assert!(passes("doctor", &step(json!({ "connection": 0, "stage": "TCP", "event": "begins" }))));
    assert!(!passes(
        "doctor",
        &step(json!({ "connection": 0, "stage": "TCP", "event": "field", "by": "us" }))
    ));
}
