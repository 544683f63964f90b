//! The id by which a virtual machine is shown: the one that its runner gave it, as far as its names tell.

use std::path::{Path, PathBuf};

/// Names of directories and sockets that many virtual machines have.
const COMMON: [&str; 22] = [
    "api",
    "bin",
    "firecracker",
    "home",
    "monitor",
    "opt",
    "qmp",
    "root",
    "run",
    "sandbox",
    "sandboxes",
    "sock",
    "socket",
    "sockets",
    "srv",
    "tmp",
    "var",
    "vm",
    "vms",
    "work",
    "workspace",
    "workspaces",
];

/// The shortest id in the arguments that means one virtual machine.
const TELLING: usize = 6;

/// An id, and how sure it is that it means one virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Derived {
    /// A part of a name; `None` if no name tells an id.
    pub(super) text: Option<String>,
    /// Whether no person would have chosen the name, or two independent names have it.
    pub(super) is_certain: bool,
}

/// The names that may have the id in them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// The working directory.
    pub(super) directory: Option<PathBuf>,
    /// The API socket in the arguments.
    pub(super) socket: Option<PathBuf>,
    /// The id or name in the arguments.
    pub(super) given: Option<String>,
}

impl Names {
    /// Reads the names in the arguments of a monitor.
    pub(super) fn read(directory: Option<PathBuf>, arguments: &[String]) -> Names {
        let socket = socket(arguments).map(|socket| match &directory {
            Some(directory) => directory.join(socket),
            None => PathBuf::from(socket),
        });
        let given = value(arguments, &["--id"])
            .or_else(|| {
                value(arguments, &["-name", "--name"]).map(|name| field(name, "guest").unwrap_or(name))
            })
            .filter(|name| !name.is_empty());
        Names { directory, socket, given: given.map(str::to_owned) }
    }

    /// Derives the id: the most telling name first.
    pub(super) fn derive(&self) -> Derived {
        let last = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
        let directory = self.directory.as_ref().and_then(last);
        let file = self.socket.as_ref().and_then(last);
        let stem = file.as_deref().map(|file| file.split_once('.').map_or(file, |(stem, _)| stem).to_owned());
        let above = self.socket.as_deref().and_then(Path::parent).map(Path::to_owned).as_ref().and_then(last);
        let sure = |text: String| Derived { text: Some(text), is_certain: true };
        if let Some(text) = directory.as_deref().and_then(generated_part) {
            return sure(text);
        }
        if let Some(given) = &self.given {
            // A person may have chosen a short or a common word, which other directories have in their names, too.
            let is_telling = given.len() >= TELLING && !COMMON.contains(&given.as_str());
            let is_certain = is_telling || generated_part(given).is_some();
            return Derived {
                text: Some(generated_part(given).unwrap_or_else(|| given.clone())),
                is_certain,
            };
        }
        if let Some(text) = [&file, &above].into_iter().flatten().find_map(|name| generated_part(name)) {
            return sure(text);
        }
        let telling = |name: &String| !name.is_empty() && !COMMON.contains(&name.as_str());
        let directory = directory.filter(telling);
        let socket: Vec<String> = [stem, above].into_iter().flatten().filter(telling).collect();
        let is_below = self.directory.as_ref().zip(self.socket.as_ref());
        let is_below = is_below.is_some_and(|(directory, socket)| socket.starts_with(directory));
        match directory {
            Some(name) => {
                let is_certain = !is_below && socket.iter().any(|other| other.contains(&name));
                Derived { text: Some(name), is_certain }
            }
            None => Derived { text: socket.into_iter().next(), is_certain: false },
        }
    }
}

/// Returns the path of the API socket in the arguments of a monitor.
fn socket(arguments: &[String]) -> Option<&str> {
    let api = value(arguments, &["--api-sock", "--api-socket", "--socket"]).and_then(|value| {
        if value.starts_with("fd=") { None } else { Some(field(value, "path").unwrap_or(value)) }
    });
    let qmp = || {
        let value = value(arguments, &["-qmp", "--qmp", "-qmp-pretty", "-monitor"])?;
        Some(value.strip_prefix("unix:")?.split(',').next().unwrap_or_default())
    };
    let chardev = || {
        let value =
            value(arguments, &["-chardev", "--chardev"]).filter(|value| value.starts_with("socket,"))?;
        field(value, "path")
    };
    api.or_else(qmp).or_else(chardev).filter(|path| !path.is_empty())
}

/// Returns the value of one of these options: `--key value` or `--key=value`.
fn value<'a>(arguments: &'a [String], keys: &[&str]) -> Option<&'a str> {
    arguments.iter().enumerate().skip(1).find_map(|(at, word)| {
        if keys.contains(&word.as_str()) {
            return arguments.get(at + 1).map(String::as_str);
        }
        let (key, value) = word.split_once('=')?;
        keys.contains(&key).then_some(value)
    })
}

/// Returns a field of a value such as `socket,id=a,path=/b`.
fn field<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    value.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the part of a name that a program has generated: a uuid, a number in hexadecimal or a random word.
pub(super) fn generated_part(name: &str) -> Option<String> {
    if let Some(uuid) = uuid_in(name) {
        return Some(uuid.to_owned());
    }
    let words = name.split(|character: char| !character.is_ascii_alphanumeric());
    words.filter(|word| is_random(word)).max_by_key(|word| word.len()).map(str::to_owned)
}

fn uuid_in(name: &str) -> Option<&str> {
    const LENGTH: usize = 36;
    let is_uuid = |text: &str| {
        text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
    };
    (0..name.len()).find_map(|at| name.get(at..at + LENGTH).filter(|text| is_uuid(text)))
}

/// Tells whether a word has letters and digits as no person writes them. `python312` and `20261124` are not random.
fn is_random(word: &str) -> bool {
    let bytes = word.as_bytes();
    let (digits, letters) = (bytes.iter().any(u8::is_ascii_digit), bytes.iter().any(u8::is_ascii_alphabetic));
    let is_hex = bytes.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
    let changes =
        bytes.windows(2).filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
    digits && letters && (is_hex && bytes.len() >= 6 || bytes.len() >= 8 && changes >= 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(directory: &str, arguments: &str) -> (Option<String>, bool) {
        let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        let names = Names::read(Some(PathBuf::from(directory)), &arguments);
        let Derived { text, is_certain } = names.derive();
        (text, is_certain)
    }

    fn sure(text: &str) -> (Option<String>, bool) {
        (Some(text.to_owned()), true)
    }

    #[test]
    fn the_most_telling_name_has_the_id() {
        assert_eq!(id("/run/vms/vm-3f9a1c2b", "firecracker --api-sock /run/s/x.sock"), sure("3f9a1c2b"));
        let uuid = "0b9d2c1e-7a55-4f6b-9c3d-1e2f3a4b5c6d";
        assert_eq!(id(&format!("/w/{uuid}"), "firecracker"), sure(uuid));
        assert_eq!(id("/", "/firecracker --id blue-web --start-time-us 1"), sure("blue-web"));
        assert_eq!(
            id("/opt/runner", "cloud-hypervisor --api-socket path=/run/3f9a1c2b.sock"),
            sure("3f9a1c2b")
        );
        assert_eq!(id("/opt/runner", "firecracker --api-sock=/run/3f9a1c2b/api.sock"), sure("3f9a1c2b"));
        assert_eq!(id("/w", "qemu-system-x86_64 -name guest=blue-web,debug-threads=on"), sure("blue-web"));
        // Two names agree.
        assert_eq!(id("/w/blue", "q -qmp unix:/run/blue/qmp.sock,server=on"), sure("blue"));
        assert_eq!(id("/w/blue", "q -chardev socket,id=mon,path=/run/blue.sock"), sure("blue"));
    }

    #[test]
    fn a_name_that_a_person_may_have_chosen_is_not_certain() {
        assert_eq!(id("/root/blue", "q -qmp unix:qmp.sock,server=on"), (Some("blue".to_owned()), false));
        assert_eq!(id("/root/blue", "q -qmp unix:blue.sock,server=on"), (Some("blue".to_owned()), false));
        assert_eq!(id("/tmp", "q --api-sock /run/blue.sock"), (Some("blue".to_owned()), false));
        for given in ["blue", "a", "sandbox"] {
            assert_eq!(id("/", &format!("/firecracker --id {given}")), (Some(given.to_owned()), false));
        }
        assert_eq!(id("/tmp", "q --api-sock fd=3"), (None, false));
        assert_eq!(id("/", "q"), (None, false));
    }

    #[test]
    fn a_random_word_has_letters_and_digits() {
        for (name, word) in [("vm0-3f9a1c2b", "3f9a1c2b"), ("fc_k3j9x2p1", "k3j9x2p1"), ("abc123", "abc123")]
        {
            assert_eq!(generated_part(name).as_deref(), Some(word));
        }
        for name in
            ["", "projects", "python312", "backup-20261124", "x86_64", "release2024", "deadbeef", "vm-12"]
        {
            assert_eq!(generated_part(name), None, "{name}");
        }
    }
}
