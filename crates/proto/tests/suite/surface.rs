//! Compares the names, numbers and types of our API with a listing of etcd's API.
//!
//! `surface.txt` lists every definition of every package. A message or an enum takes one line. A
//! service takes a first line with its name, one line for each call, and a last line. The test
//! builds a listing in the same format from the descriptors in this crate, and compares the two
//! listings. Except for our own package `peerpb`, the file was compared with the descriptors of
//! etcd 3.7.1. So a changed line changes the protocol with clients, or a format of etcd's files.
//!
//! `UPDATE_GOLDENFILES=1 cargo test -p clearlane-proto --test suite surface` rewrites the file.
//! Read the diff afterwards.
//!
//! Notation: `type name=number`. `repeated` and proto2's `optional` precede the type.
//! `oneof:<name>` precedes the members of that oneof. A type without a package is in the same
//! package.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clearlane_proto::{DESCRIPTORS, Message};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};

#[test]
fn surface_is_the_one_listed() {
    let listing = Listing::of_everything().to_string();
    // The variable is read when the test runs. With `env!` it would be read when the test is
    // compiled. Two checkouts that share a target directory also share the compiled test, which
    // would then read the file of the wrong checkout.
    let path = std::env::var("CARGO_MANIFEST_DIR").expect("cargo tells where the crate is");
    let path = Path::new(&path).join("tests/surface.txt");
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::write(&path, &listing).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    for (ours, listed) in listing.lines().zip(golden.lines()) {
        assert_eq!(ours, listed, "the surface differs from tests/surface.txt");
    }
    assert_eq!(listing.lines().count(), golden.lines().count(), "lines in tests/surface.txt");
}

#[test]
fn every_file_is_self_contained() {
    let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let mut seen = Vec::new();
    for file in &set.file {
        for import in &file.dependency {
            assert!(seen.contains(&import.as_str()), "{} before its import {import}", file.name());
        }
        seen.push(file.name());
    }
}

/// The definitions by package, then by name. A nested definition has the name `Outer.Inner`.
#[derive(Default)]
struct Listing {
    packages: BTreeMap<String, BTreeMap<String, String>>,
}

impl Listing {
    fn of_everything() -> Self {
        let mut listing = Self::default();
        let set = FileDescriptorSet::decode(DESCRIPTORS).expect("the build encoded it");
        for file in &set.file {
            listing.add_file(file);
        }
        listing
    }

    fn add_file(&mut self, file: &FileDescriptorProto) {
        let scope = Scope { package: file.package(), proto2: file.syntax() != "proto3" };
        for service in &file.service {
            self.add(&scope, service.name(), scope.service(service));
        }
        for definition in &file.enum_type {
            self.add(&scope, definition.name(), enumeration(definition.name(), definition));
        }
        for message in &file.message_type {
            self.add_message(&scope, message.name(), message);
        }
    }

    fn add_message(&mut self, scope: &Scope<'_>, name: &str, message: &DescriptorProto) {
        self.add(scope, name, scope.message(name, message));
        for inner in &message.enum_type {
            let name = format!("{name}.{}", inner.name());
            self.add(scope, &name, enumeration(&name, inner));
        }
        for inner in message.nested_type.iter().filter(|inner| !is_map_entry(inner)) {
            self.add_message(scope, &format!("{name}.{}", inner.name()), inner);
        }
    }

    fn add(&mut self, scope: &Scope<'_>, name: &str, line: String) {
        let package = self.packages.entry(scope.package.to_owned()).or_default();
        let earlier = package.insert(name.to_owned(), line);
        assert_eq!(earlier, None, "{name} is defined twice in {}", scope.package);
    }
}

impl std::fmt::Display for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (package, definitions) in &self.packages {
            writeln!(f, "package {package}")?;
            for line in definitions.values() {
                writeln!(f, "{line}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

struct Scope<'a> {
    package: &'a str,
    proto2: bool,
}

impl Scope<'_> {
    fn service(&self, service: &ServiceDescriptorProto) -> String {
        let methods: Vec<_> = service.method.iter().map(|method| self.method(method)).collect();
        format!("service {} {{\n{}\n}}", service.name(), methods.join("\n"))
    }

    fn method(&self, method: &MethodDescriptorProto) -> String {
        let stream = |streaming: bool| if streaming { "stream " } else { "" };
        format!(
            "  rpc {}({}{}) -> ({}{})",
            method.name(),
            stream(method.client_streaming()),
            self.local(method.input_type()),
            stream(method.server_streaming()),
            self.local(method.output_type()),
        )
    }

    fn message(&self, name: &str, message: &DescriptorProto) -> String {
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        let mut parts: Vec<_> =
            fields.into_iter().map(|field| self.field(message, field)).collect();
        for range in &message.reserved_range {
            let (first, last) = (range.start(), range.end() - 1);
            assert_eq!(first, last, "the notation knows single reserved numbers only");
            parts.push(format!("reserved {first}"));
        }
        parts.extend(message.reserved_name.iter().map(|name| format!("reserved {name}")));
        braced("message", name, &parts, "; ")
    }

    fn field(&self, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
        let type_name = self.type_name(field);
        let map = message.nested_type.iter().find(|inner| {
            is_map_entry(inner) && type_name == format!("{}.{}", message.name(), inner.name())
        });
        let type_name = match map {
            Some(entry) => {
                format!(
                    "map<{},{}>",
                    self.type_name(&entry.field[0]),
                    self.type_name(&entry.field[1])
                )
            }
            None => type_name,
        };
        let label = match (field.label(), field.oneof_index) {
            (Label::Repeated, _) if map.is_some() => String::new(),
            (Label::Repeated, _) => "repeated ".to_owned(),
            (_, Some(index)) => {
                assert!(!field.proto3_optional(), "etcd's proto3 files know no `optional`");
                format!("oneof:{} ", message.oneof_decl[index as usize].name())
            }
            (Label::Optional, None) if self.proto2 => "optional ".to_owned(),
            _ => String::new(),
        };
        format!("{label}{type_name} {}={}", field.name(), field.number())
    }

    fn type_name(&self, field: &FieldDescriptorProto) -> String {
        match field.r#type() {
            Type::Message | Type::Enum => self.local(field.type_name()).to_owned(),
            scalar => scalar.as_str_name().strip_prefix("TYPE_").unwrap_or_default().to_lowercase(),
        }
    }

    fn local<'a>(&self, full_name: &'a str) -> &'a str {
        let full_name = full_name.strip_prefix('.').unwrap_or(full_name);
        full_name
            .strip_prefix(self.package)
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or(full_name)
    }
}

fn enumeration(name: &str, definition: &EnumDescriptorProto) -> String {
    let values: Vec<_> = definition
        .value
        .iter()
        .map(|value| format!("{}={}", value.name(), value.number()))
        .collect();
    braced("enum", name, &values, ", ")
}

fn braced(kind: &str, name: &str, parts: &[String], separator: &str) -> String {
    if parts.is_empty() {
        format!("{kind} {name} {{}}")
    } else {
        format!("{kind} {name} {{ {} }}", parts.join(separator))
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|options| options.map_entry())
}
