# The sources in which tests plant bugs: one is linked in another's place, so each is an object of its
# own.
set(BATON_PLANTED_SOURCES)
file(GLOB lists CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/planted/*_test.txt
     ${PROJECT_SOURCE_DIR}/tests/sim/planted_bugs.txt)
foreach(list ${lists})
  file(STRINGS ${list} headings REGEX "^(bug|copy) ")
  list(TRANSFORM headings REPLACE "^(copy|bug [^|]*[|]) *([^ |]*).*$" "${PROJECT_SOURCE_DIR}/\\2")
  list(APPEND BATON_PLANTED_SOURCES ${headings})
endforeach()
