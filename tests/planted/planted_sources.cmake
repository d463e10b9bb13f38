# planted_sources(LIST result): the sources, from the root, that a list of bugs copies.
function(planted_sources list result)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list})
  file(STRINGS ${list} sources REGEX "^(bug|copy) ")
  list(TRANSFORM sources REPLACE "^(copy|bug [^|]*[|]) *([^ |]*).*$" "\\2")
  list(REMOVE_DUPLICATES sources)
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# One is linked in another's place, so each of them is an object of its own.
set(BATON_PLANTED_SOURCES)
file(GLOB lists CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/planted/*_test.txt
     ${PROJECT_SOURCE_DIR}/tests/sim/planted_bugs.txt)
foreach(list ${lists})
  planted_sources(${list} sources)
  list(TRANSFORM sources PREPEND ${PROJECT_SOURCE_DIR}/)
  list(APPEND BATON_PLANTED_SOURCES ${sources})
endforeach()
