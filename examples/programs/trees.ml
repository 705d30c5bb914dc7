(* A map of strings that grows and is changed in a random order: each change copies a path. *)
module Map = Map.Make (Int)

let () =
  let seed = ref 7 in
  let next () = seed := ((!seed * 1103515245) + 12345) land 0x3fffffff; !seed in
  let map = ref Map.empty in
  for _ = 1 to 400_000 do
    let key = next () in
    map := Map.add key (string_of_int key) !map
  done;
  let found = ref 0 in
  for _ = 1 to 130_000 do
    match Map.find_first_opt (fun key -> key >= next ()) !map with
    | Some (_, text) -> found := !found + String.length text
    | None -> ()
  done;
  Printf.printf "%d %d\n" (Map.cardinal !map) !found
